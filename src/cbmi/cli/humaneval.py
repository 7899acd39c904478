"""`cbmi humaneval`: have people rate translations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from cbmi.cli.app import DATA, App, Host, HostNames, Output, Port, app, writer
from cbmi.errors import UserError
from cbmi.progress import counted

humaneval = App(help="Have people rate translations or mark their errors, blindly.")
app.add_typer(humaneval, name="humaneval", rich_help_panel=DATA)
MOST_ANNOTATORS = 100
StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The study's folder.")]
Annotator = Annotated[str, typer.Option(metavar="NAME", help="Whose; such as annotator-1.")]


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
    annotators: Annotated[
        str,
        typer.Option(metavar="N|NAME,NAME", help="How many people rate, or their names."),
    ] = "3",
    scheme: Annotated[
        str,
        typer.Option(
            metavar="scales|spans",
            help="Adequacy and fluency from 1 to 5, or minor and major errors marked in the text.",
        ),
    ] = "scales",
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the sample and of the order of items.")
    ] = 1,
) -> None:
    """Draw lines of a test set and make a study of several systems' translations of them."""
    from cbmi.humaneval.schemes import SCHEMES
    from cbmi.humaneval.study import create_study

    systems = []
    for choice in system:
        name, _, file = choice.partition("=")
        if not name or not file:
            raise UserError(f"--system: '{choice}' should be NAME=FILE.")
        systems.append((name, file))
    chosen = next((known for known in SCHEMES if known == scheme), None)
    if chosen is None:
        raise UserError(f"--scheme: '{scheme}' is not one of {', '.join(SCHEMES)}.")
    people = _people(annotators)
    study = create_study(output, source, reference, systems, sample, people, seed, chosen)
    translations = counted(study.size(), "translation")
    print(f"{output}: {translations} of {counted(sample, 'line')}.")
    print(f"Serve it with: cbmi humaneval serve {output}")


def _people(annotators: str) -> int | list[str]:
    """How many, or who."""
    if annotators.isascii() and annotators.isdigit():
        if not 1 <= len(annotators) <= 3 or not 1 <= int(annotators) <= MOST_ANNOTATORS:
            raise UserError(f"--annotators: there may be 1 to {MOST_ANNOTATORS}.")
        return int(annotators)
    names = [name.strip() for name in annotators.split(",")]
    for name in names:
        if not re.fullmatch(r"[\w.@ -]{1,60}", name):
            raise UserError(
                f"--annotators: '{name}' is not a name: use letters, digits, spaces and . @ _ -, "
                "with commas between names."
            )
    if len(names) > MOST_ANNOTATORS:
        raise UserError(f"--annotators: there may be 1 to {MOST_ANNOTATORS}.")
    return names


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
