"""Commands that use a model: translate, score, look at it, filter a corpus with it."""

from __future__ import annotations

import json as json_format
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cbmi.cli.app import (
    DATA,
    SOURCE_HELP,
    STUDY,
    USE,
    Beam,
    Checkpoint,
    Device,
    Host,
    HostNames,
    LengthPenalty,
    Nbest,
    Output,
    Port,
    RunFolder,
    SampleSeed,
    TargetFile,
    Temperature,
    TopK,
    app,
    check_output,
    spool,
    writer,
)
from cbmi.errors import UserError

if TYPE_CHECKING:
    from cbmi.decoding import Sampling

# Pairs are scored in float32: differences of logarithms want every digit.
SCORING_PRECISION = "fp32"


@app.command(rich_help_panel=USE)
def translate(
    run: RunFolder,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Text to translate; standard input if left out.")
    ] = "-",
    output: Output = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = 0.6,
    nbest: Nbest = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Put score and log-probability before each.")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations at random, without a beam.")
    ] = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    seed: SampleSeed = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Translate text, line by line; or fill in a .po or XLIFF file, marked for review."""
    import cbmi
    from cbmi.inference.documents import is_document, translate_document
    from cbmi.inference.streams import translate_stream

    sampling = _sampling(sample, temperature, top_k, seed, beam)
    if is_document(file):
        if output is None:
            raise UserError(f"-o: name the file to write, a copy of {file} with translations.")
        if sample or scores or nbest > 1:
            raise UserError(
                f"{file}: it takes one translation; leave out --nbest, --scores and --sample."
            )
        check_output(output, file)
        translate_document(cbmi.load(run, checkpoint, device), file, output, beam, length_penalty)
        return
    with writer(output, file) as out:
        model = cbmi.load(run, checkpoint, device)
        translate_stream(
            model,
            file,
            out,
            beam=beam,
            length_penalty=length_penalty,
            nbest=nbest,
            sampling=sampling,
            scores=scores,
        )


def _sampling(
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    seed: int | None,
    beam: int | None,
) -> Sampling | None:
    """How to sample, after checking which options go together; None: beam search."""
    from cbmi.decoding import Sampling

    if not sample:
        options = {"--temperature": temperature, "--top-k": top_k, "--seed": seed}
        for option, value in options.items():
            if value is not None:
                raise UserError(f"{option}: this is for sampling; say --sample as well.")
        return None
    if beam is not None and beam > 1:
        raise UserError("--beam: sampling has no beam; leave out --beam or --sample.")
    return Sampling(
        temperature=Sampling.temperature if temperature is None else temperature,
        top_k=Sampling.top_k if top_k is None else top_k,
        seed=Sampling.seed if seed is None else seed,
    )


@app.command(rich_help_panel=USE)
def evaluate(
    systems: Annotated[
        list[str], typer.Argument(metavar="SYSTEM", help="Translations, one per line.")
    ],
    reference: Annotated[
        list[str],
        typer.Option(
            metavar="REF", help="The reference translation; give several for several references."
        ),
    ],
    language: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE", help="Of the text; zh, ja, th, … are split into characters."
        ),
    ] = None,
    multi_bleu: Annotated[
        bool, typer.Option("--multi-bleu", help="Also BLEU as multi-bleu.perl computes it.")
    ] = False,
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="LANGUAGE", help="For --multi-bleu: tokenise as Moses does."),
    ] = None,
    split_compounds: Annotated[
        bool, typer.Option("--split-compounds", help="For --multi-bleu: split words at hyphens.")
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples; 0: no intervals, no test.")
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """BLEU, chrF and TER with intervals; several systems are tested against the first."""
    import cbmi
    from cbmi.data.lines import read_lines, report_repaired
    from cbmi.data.words import looks_unspaced
    from cbmi.evaluation.text_table import render
    from cbmi.progress import say

    if len(set(systems)) < len(systems):
        raise UserError("evaluate: the same system is given twice.")
    counts: Counter[str] = Counter()
    if len(set(reference)) < len(reference):
        raise UserError("evaluate: the same reference is given twice.")
    references = [list(read_lines(file, counts)) for file in reference]
    texts = {system: list(read_lines(system, counts)) for system in systems}
    report_repaired(counts)
    if language is None and looks_unspaced(references[0]):
        say(
            f"{reference[0]}: this looks like text without spaces; --language zh (or ja, th, …) "
            "splits it into characters."
        )
    report = cbmi.evaluate(
        references,
        texts,
        bootstrap=bootstrap,
        language=language or "",
        multi_bleu=multi_bleu,
        tokenize=tokenize,
        split_compounds=split_compounds,
    )
    if json:
        files = reference[0] if len(reference) == 1 else reference
        record = {"reference": files, **report.to_json()}
        print(json_format.dumps(record, indent=1, ensure_ascii=False))
    else:
        print(render(report))


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


@app.command(rich_help_panel=USE)
def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface or argos.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder; for Argos, a .argosmodel file.")
    ],
    quantization: Annotated[
        str | None, typer.Option(metavar="TYPE", help="int8, float16, …; float32 if left out.")
    ] = None,
    language_model: Annotated[
        bool, typer.Option("--language-model", help="The language model, too, for scoring.")
    ] = False,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the model card.")
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a model that other programs load, verified against the run."""
    from cbmi.interop.export import ExportSettings, export_run

    settings = ExportSettings(to, quantization, language_model, licence)
    export_run(run, output, settings, checkpoint)


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


@app.command(rich_help_panel=USE)
def serve(
    run: RunFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    allow_host: HostNames = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantized, by CTranslate2: fast on a CPU.")
    ] = False,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Translate on a local page, see what each word owes to the source, edit; with an HTTP API."""
    import cbmi
    from cbmi.serving.inspector import serve_inspector

    if not int8:
        model = cbmi.load(run, checkpoint, device, SCORING_PRECISION)
        serve_inspector(model, host, port, show, allow_host or ())
        return
    from cbmi.interop.export import quantized

    with quantized(run, checkpoint) as folder:
        serve_inspector(cbmi.load(folder, None, "cpu"), host, port, show, allow_host or ())


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
