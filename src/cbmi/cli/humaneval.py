"""`cbmi humaneval`: have people rate translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbmi.cli.app import Host, HostNames, Output, Port, app, writer
from cbmi.errors import UserError

humaneval = typer.Typer(
    no_args_is_help=True, help="Have people rate adequacy and fluency, blindly."
)
app.add_typer(humaneval, name="humaneval")
StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The study's folder.")]
Annotator = Annotated[str, typer.Option(metavar="NAME", help="Such as annotator-1.")]


@humaneval.command("create")
def humaneval_create(
    source: Annotated[str, typer.Option(metavar="FILE", help="Source sentences.")],
    system: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE", help="A system's translations; may be given several times."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder of the new study.")
    ],
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Reference translations, if they are to be shown."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Lines drawn at random.")] = 100,
    annotators: Annotated[int, typer.Option(min=1, max=100, help="How many people rate.")] = 3,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the sample and of the order of items.")
    ] = 1,
) -> None:
    """Draw lines of a test set and make a study of several systems' translations of them."""
    from cbmi.humaneval.study import create_study

    systems = []
    for choice in system:
        name, _, file = choice.partition("=")
        if not name or not file:
            raise UserError(f"--system: '{choice}' should be NAME=FILE.")
        systems.append((name, file))
    study = create_study(output, source, reference, systems, sample, annotators, seed)
    print(f"{output}: {study.size()} translations of {sample} lines.")
    print(f"Serve it with: cbmi humaneval serve {output}")


@humaneval.command("serve")
def humaneval_serve(
    folder: StudyFolder,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    allow_host: HostNames = None,
) -> None:
    """Serve the page on which annotators rate; prints everyone's private link."""
    from cbmi.serving.annotation import serve_study

    serve_study(folder, host, port, allow_host or ())


@humaneval.command("report")
def humaneval_report(
    folder: StudyFolder,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder; else DIR/report.")
    ] = None,
) -> None:
    """Say what came out: means, intervals, tests, agreement; as text, page, LaTeX and CSV."""
    from cbmi.humaneval.report import write_study_report
    from cbmi.humaneval.study import open_study

    where = output or folder / "report"
    print(write_study_report(open_study(folder), where))
    print(f"{where}: report.html, report.md, table.tex, systems.csv, ratings.csv")


@humaneval.command("export")
def humaneval_export(folder: StudyFolder, annotator: Annotator, output: Output = None) -> None:
    """Write an annotator's items as CSV, for people who rate in a spreadsheet."""
    from cbmi.humaneval.sheets import export_sheet
    from cbmi.humaneval.study import open_study

    with writer(output) as out:
        export_sheet(open_study(folder), annotator, out)


@humaneval.command("import")
def humaneval_import(
    folder: StudyFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="A sheet of `humaneval export`, filled in.")
    ],
    annotator: Annotator,
) -> None:
    """Read an annotator's ratings from CSV."""
    from cbmi.humaneval.sheets import import_sheet
    from cbmi.humaneval.study import open_study

    read, replaced = import_sheet(open_study(folder), annotator, file)
    print(f"{read} ratings read" + (f", {replaced} of them in place of others" if replaced else ""))
