"""Commands that use a model: translate, score, look at it, filter a corpus with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbmi.cli.app import (
    SOURCE_HELP,
    Beam,
    Checkpoint,
    Device,
    Host,
    LengthPenalty,
    Output,
    Port,
    RunFolder,
    TargetFile,
    app,
    check_output,
    pair_files,
    spool,
    writer,
)
from cbmi.errors import UserError


@app.command()
def translate(
    run: RunFolder,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Text to translate; standard input if left out.")
    ] = "-",
    output: Output = None,
    beam: Beam = 4,
    length_penalty: LengthPenalty = 0.6,
    nbest: Annotated[int, typer.Option(min=1, help="Translations a line, each on a line of its own.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Put score and log-probability before each.")] = False,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Translate text, line by line."""
    from cbmi.analysis.translate import translate_lines
    from cbmi.training.trained import Trained

    with writer(output, file) as out:
        model = Trained(run, checkpoint, device)
        translate_lines(model, file, out, beam, length_penalty, nbest, scores)


@app.command()
def evaluate(
    systems: Annotated[list[str], typer.Argument(metavar="SYSTEM...", help="Translations, one a line.")],
    reference: Annotated[str, typer.Option(metavar="REF", help="The reference translation.")],
    language: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Of the text; zh, ja, th, … are cut into characters.")
    ] = None,
    multi_bleu: Annotated[bool, typer.Option("--multi-bleu", help="Also BLEU as multi-bleu.perl gives it.")] = False,
    tokenize: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="For --multi-bleu: tokenise as Moses does.")
    ] = None,
    split_compounds: Annotated[
        bool, typer.Option("--split-compounds", help="For --multi-bleu: split words at hyphens.")
    ] = False,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamplings; 0: no intervals, no test.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """BLEU, chrF and TER with intervals; with several systems, paired bootstrap against the first."""
    from cbmi.analysis.evaluate import evaluate_files

    settings = {"multi_bleu": multi_bleu, "tokenize": tokenize, "split_compounds": split_compounds}
    print(evaluate_files(reference, systems, json=json, language=language, bootstrap=bootstrap, **settings))


@app.command()
def score(
    run: RunFolder,
    source: Annotated[str, typer.Option(metavar="FILE", help=SOURCE_HELP)],
    target: TargetFile = None,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say, token by token, how much a translation depends on its source (JSON, one pair a line)."""
    from cbmi.analysis.score import score_files
    from cbmi.training.trained import Trained

    files = pair_files(source, target)
    with writer(output, *files) as out, spool(output) as waiting:
        model = Trained(run, checkpoint, device, precision="fp32")  # differences of logarithms want every digit
        score_files(model, files, out, waiting)


@app.command()
def inspect(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")],
    source: Annotated[str | None, typer.Option(metavar="FILE", help=SOURCE_HELP)] = None,
    target: TargetFile = None,
    sentence: Annotated[
        tuple[str, str] | None, typer.Option(metavar="SOURCE TARGET", help="One pair, instead of files.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="RUN2", help="Another run, to be shown beside the first.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also figures for papers, here.")] = None,
    pair: Annotated[int | None, typer.Option(min=1, metavar="N", help="The pair whose figure is drawn.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Pairs that are shown at most.")] = 2000,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Show pairs word by word, coloured by CBMI: a page that stands alone, and figures."""
    from cbmi.analysis.inspect import inspect_pairs, read_some
    from cbmi.files import check_writable

    if bool(sentence) == bool(source) or (target and not source):
        raise UserError(
            "inspect: say either --source FILE --target FILE (or --source FILE.tsv) or --sentence SOURCE TARGET."
        )
    files = pair_files(source, target) if source else ()
    check_output(output, *files)
    if figures and figures.exists() and not figures.is_dir():
        raise UserError(f"--figures: {figures} is a file; name a folder.")
    if pair and not figures:
        raise UserError("--pair: it chooses the pair of a figure; say --figures FOLDER as well.")
    if sentence and any(text != text.encode(errors="replace").decode() for text in sentence):
        raise UserError("--sentence: this is not valid UTF-8.")
    for folder in (output.resolve().parent, *([figures] if figures else [])):
        check_writable(folder)
    pairs = [sentence] if sentence else read_some(files, limit)
    from cbmi.training.trained import Trained

    runs = [(run, checkpoint)] + ([(compare, None)] if compare else [])
    models = [Trained(folder, name, device, precision="fp32") for folder, name in runs]
    inspect_pairs(models, pairs, output, figures, pair)


@app.command("filter")
def filter_(
    run: RunFolder,
    source: Annotated[str, typer.Option(metavar="FILE", help=SOURCE_HELP)],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PREFIX", help="What all files' names begin with.")
    ],
    target: TargetFile = None,
    keep: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Keep this share of the pairs, e.g. 0.9.")
    ] = None,
    minimum: Annotated[
        float | None, typer.Option("--min", metavar="SCORE", help="Keep pairs of at least this score.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="SCORE", help="cbmi (sentence CBMI), or likelihood (of the translation).")
    ] = "cbmi",
    drop_copies: Annotated[
        bool, typer.Option("--drop-copies", help="Drop pairs whose target is the source again, but for spaces.")
    ] = False,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Drop pairs that repeat an earlier one, but for spaces.")
    ] = False,
    max_ratio: Annotated[
        float | None,
        typer.Option(metavar="R", help="Drop pairs with a side over R times as long as usual beside the other."),
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Split a parallel corpus by a score of its pairs; if nothing is to be dropped, score it and show samples."""
    from cbmi.analysis.filter import filter_corpus
    from cbmi.analysis.filter_rules import Choice
    from cbmi.training.trained import Trained
    from cbmi.training.world import join_world

    files, choice = pair_files(source, target), Choice(keep, minimum, by, drop_copies, max_ratio, drop_duplicates)
    with join_world(device) as world:
        model = Trained(run, checkpoint, str(world.device), precision="fp32")
        filter_corpus(model, files, choice, output, world)


@app.command()
def serve(
    run: RunFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Translate on a local page, see what each word owes to the source, edit and see it change; with an HTTP API."""
    from cbmi.serving.inspector import serve_inspector
    from cbmi.training.trained import Trained

    serve_inspector(Trained(run, checkpoint, device, precision="fp32"), host, port, show)


@app.command("prior-accuracy")
def prior_accuracy(
    run: RunFolder,
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"{SOURCE_HELP} If left out, the run's validation set.")
    ] = None,
    target: TargetFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say which prior guesses tokens best, by their CBMI: the language model's, the translator's, or CBMI's."""
    from cbmi.analysis.prior_accuracy import pairs_of, prior_accuracy, table
    from cbmi.files import to_json
    from cbmi.training.trained import Trained

    if target and not source:
        raise UserError("prior-accuracy: name --source as well, or neither.")
    files = pair_files(source, target) if source else ()
    with writer(output, *files) as out:
        model = Trained(run, checkpoint, device, precision="fp32")
        accuracy = prior_accuracy(model, pairs_of(model, files))
        out.write(to_json(accuracy) if json else table(accuracy) + "\n")
