"""Commands for experiments: many runs and their report, and corpora to run them on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cbmi.cli.app import DATA, STUDY, App, Overrides, app, stopping
from cbmi.errors import UserError

corpus = App(help="Corpora: other formats to lines of text; known ones by name.")
app.add_typer(corpus, name="corpus", rich_help_panel=DATA)


@app.command(rich_help_panel=STUDY)
def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the jobs and how long they may take.")
    ] = False,
    devices: Annotated[
        str,
        typer.Option(
            help="One job at a time on each: cuda:0,cuda:1; one named twice runs two side by side."
        ),
    ] = "auto",
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Only the I-th of N parts of the jobs, from 0/N to N-1/N."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB", help="Only this job and what it needs; repeatable."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Only report the existing results.")
    ] = False,
    launcher: Annotated[
        Literal["local", "slurm"],
        typer.Option(help="Where the jobs run: here, or as jobs of Slurm."),
    ] = "local",
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="For --launcher slurm, repeatable: partition=gpu, timeout_min=600, …",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, show_default="16", help="For --launcher slurm: jobs at a time."),
    ] = None,
) -> None:
    """Train, translate, test and report tasks × systems × seeds; the same command resumes it."""
    from cbmi.experiments.experiment import run_experiment
    from cbmi.experiments.launchers import slurm_options
    from cbmi.experiments.settings import read_experiment

    settings = read_experiment(file, overrides or [])
    places = devices.split(",")
    options = None
    if launcher == "slurm":
        if devices != "auto":
            raise UserError("--devices: Slurm chooses them; say --jobs N for N at a time.")
        options = slurm_options(slurm or [])
        places = ["auto"] * (jobs or 16)
    elif slurm or jobs:
        raise UserError("--slurm and --jobs are for --launcher slurm.")
    with stopping():
        status = run_experiment(
            settings,
            places,
            shard,
            dry_run=dry_run,
            report_only=report,
            only=only or (),
            slurm=options,
        )
    raise typer.Exit(status)


@corpus.command("list")
def corpus_list() -> None:
    """List the corpora by name."""
    from cbmi.interop.corpora import listing

    print(listing())


@corpus.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `cbmi corpus list`.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder; else data/NAME.")
    ] = None,
) -> None:
    """Put a corpus where the recipes look for it; public ones are downloaded, and checked."""
    from cbmi.interop.corpora import get_corpus

    get_corpus(name, output or Path("data") / name)


@corpus.command("convert")
def corpus_convert(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="TMX, XLIFF, PO, CSV, TSV, JSON lines or Parquet; or text, source and target in "
            "turn. All but Parquet also as .gz, .xz or .zst.",
        ),
    ],
    source: Annotated[str, typer.Option(metavar="CODE", help="Language; en takes en-GB, too.")],
    target: Annotated[str, typer.Option(metavar="CODE", help="Likewise.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PREFIX", help="PREFIX.en and PREFIX.de.")
    ],
    columns: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SOURCE TARGET",
            help="Of a table: the columns' names, if they are not the languages.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write PREFIX.report.json: what was left out, and why.")
    ] = False,
) -> None:
    """Make two aligned files of text out of files in other formats."""
    from cbmi.data.convert import convert

    convert(files, (source, target), output, columns, report)
