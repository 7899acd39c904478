"""Commands that score pairs: token by token, to look at, to filter a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cbmi.cli.app import (
    DATA,
    SCORING_PRECISION,
    SOURCE_HELP,
    STUDY,
    USE,
    Checkpoint,
    Device,
    Output,
    RunFolder,
    TargetFile,
    app,
    check_output,
    spool,
    writer,
)
from cbmi.errors import UserError


@app.command(rich_help_panel=USE)
def score(
    run: RunFolder,
    source: Annotated[str, typer.Option(metavar="FILE", help=SOURCE_HELP)],
    target: TargetFile = None,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say, token by token, how much a translation depends on its source (JSON, a pair per line)."""
    import cbmi
    from cbmi.data.text import pair_files
    from cbmi.inference.scoring import score_files

    files = pair_files(source, target)
    with writer(output, *files) as out, spool(output) as folder:
        model = cbmi.load(run, checkpoint, device, SCORING_PRECISION)
        score_files(model, files, out, folder / "scores")


@app.command(rich_help_panel=USE)
def inspect(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory; or pairs that are scored already, as lines of "
            "`cbmi score` or as a dataset.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")],
    source: Annotated[str | None, typer.Option(metavar="FILE", help=SOURCE_HELP)] = None,
    target: TargetFile = None,
    sentence: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SOURCE TARGET", help="One pair, instead of files."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="RUN2", help="Another run, to be shown beside the first.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also figures for papers, here.")
    ] = None,
    pair: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The pair whose figure is drawn.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Pairs that are shown at most.")] = 2000,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Show pairs word by word, coloured by CBMI: a page that stands alone, and figures."""
    from cbmi.data.text import pair_files
    from cbmi.files import check_writable
    from cbmi.inspection.inspect import inspect_pairs, read_some
    from cbmi.inspection.scored import holds_scores, inspect_scored

    if holds_scores(run):
        if sentence or source or target or compare or figures or pair or checkpoint:
            raise UserError(f"inspect: {run} has pairs that are scored already; say -o PAGE alone.")
        check_output(output, str(run))
        inspect_scored(run, output, limit)
        return
    if bool(sentence) == bool(source) or (target and not source):
        raise UserError(
            "inspect: say either --source FILE --target FILE (or --source FILE.tsv) or --sentence "
            "SOURCE TARGET."
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
    import cbmi

    models = [cbmi.load(run, checkpoint, device, SCORING_PRECISION)]
    if compare:
        models.append(cbmi.load(compare, None, device, SCORING_PRECISION))
    pairs = [sentence] if sentence else read_some(files, models[0].languages, limit)
    inspect_pairs(models, pairs, output, figures, pair)


def _score(text: str) -> float:
    """A number, also with the minus sign that pages have."""
    return float(str(text).replace("−", "-"))


@app.command("filter", rich_help_panel=DATA)
def filter_(
    run: RunFolder,
    source: Annotated[
        str, typer.Option(metavar="FILE", help=f"{SOURCE_HELP} Or a URL; may have wildcards.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="PREFIX", help="What all files' names begin with."),
    ],
    target: TargetFile = None,
    keep: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Keep this share of the pairs, e.g. 0.9.")
    ] = None,
    minimum: Annotated[
        float | None,
        typer.Option(
            "--min",
            metavar="SCORE",
            parser=_score,
            help="Keep pairs of at least this score.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE", help="cbmi (sentence CBMI), or likelihood (of the translation)."
        ),
    ] = "cbmi",
    drop_copies: Annotated[
        bool,
        typer.Option(
            "--drop-copies", help="Drop pairs whose target is the source again, apart from spaces."
        ),
    ] = False,
    drop_duplicates: Annotated[
        bool,
        typer.Option(
            "--drop-duplicates", help="Drop pairs that repeat an earlier one, apart from spaces."
        ),
    ] = False,
    max_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Drop pairs with a side over R times as long as usual beside the other.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Score here, or with Ray on a cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a Ray cluster; without it, Ray is started here."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For --engine ray; else one per GPU, or two CPUs."),
    ] = None,
) -> None:
    """Split a parallel corpus by a score of its pairs; without a choice, only score it."""
    import cbmi
    from cbmi.data.text import pair_files

    cbmi.filter(
        run,
        *pair_files(source, target),
        output=output,
        keep=keep,
        minimum=minimum,
        by=by,
        drop_copies=drop_copies,
        drop_duplicates=drop_duplicates,
        max_ratio=max_ratio,
        checkpoint=checkpoint,
        device=device,
        engine=engine,
        address=address,
        workers=workers,
    )


@app.command("prior-accuracy", rich_help_panel=STUDY)
def prior_accuracy(
    run: RunFolder,
    source: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=f"{SOURCE_HELP} If left out, the run's validation set."),
    ] = None,
    target: TargetFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say which prior predicts tokens best, by their CBMI: of the LM, the NMT model or CBMI."""
    from cbmi.data.text import pair_files
    from cbmi.files import to_json
    from cbmi.inference.model import TrainedModel
    from cbmi.inspection.prior_accuracy import accuracy_table, pairs_of, prior_accuracy

    if target and not source:
        raise UserError("prior-accuracy: name --source as well, or neither.")
    files = pair_files(source, target) if source else ()
    with writer(output, *files) as out:
        model = TrainedModel(run, checkpoint, device, SCORING_PRECISION)
        accuracy = prior_accuracy(model, pairs_of(model, files))
        out.write(to_json(accuracy.to_json()) if json else accuracy_table(accuracy) + "\n")
