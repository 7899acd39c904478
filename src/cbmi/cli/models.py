"""Commands that use a model: translate, evaluate, export, serve."""

from __future__ import annotations

import json as json_format
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbmi.cli.app import (
    SCORING_PRECISION,
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
    Temperature,
    TopK,
    app,
    check_output,
    writer,
)
from cbmi.errors import UserError

if TYPE_CHECKING:
    from cbmi.decoding import Sampling


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
