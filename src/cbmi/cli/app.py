"""The program, and what its commands share: common arguments, and where results are written."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from cbmi.errors import NobodyReads, TrainingStopped, UserError

# How `cbmi --help` groups the commands.
TRAIN = "Train"
USE = "Use a trained model"
DATA = "Corpora and people"
STUDY = "Experiments"


PANELS = (TRAIN, USE, DATA, STUDY)

Function = TypeVar("Function", bound=Callable[..., Any])


class _PlainHelp:
    """Help in which an argument has one pair of brackets at most, and a flag no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """RUN.yaml in place of {RUN.yaml}."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in pieces]


class _PlainCommand(_PlainHelp, TyperCommand):
    pass


class _PlainGroup(_PlainHelp, TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the groups of the help."""
        names = super().list_commands(ctx)
        return sorted(names, key=self._panel)

    def _panel(self, name: str) -> int:
        panel = getattr(self.commands[name], "rich_help_panel", None)
        return PANELS.index(panel) if panel in PANELS else len(PANELS)


class App(typer.Typer):
    """A program, or a group of commands, with plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_PlainGroup, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=_PlainCommand, **settings)


app = App(
    pretty_exceptions_enable=False,
    help="Train translation models; decide, token by token, how much each token should count.",
)

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="A folder of RUN/checkpoints to use instead of the best.", metavar="NAME"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write here, not to standard output.")
]
Beam = Annotated[
    int | None, typer.Option(min=1, max=1000, show_default="4", help="Hypotheses kept at a time.")
]
TargetFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Translations of the source; omit if its file has both sides.",
    ),
]
# Pairs are scored in float32: differences of logarithms want every digit.
SCORING_PRECISION = "fp32"
SOURCE_HELP = "Source sentences; or both sides in one file: .tsv, .tmx, .po, .jsonl, …"
Host = Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="Another name that requests may use: a proxy's, say."
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
LengthPenalty = Annotated[
    float, typer.Option(min=0, max=100, help="Scores are divided by length to this power.")
]
Nbest = Annotated[
    int,
    typer.Option(
        min=1,
        help="Translations per line, each on a line of its own: best first; samples in the order "
        "drawn.",
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(show_default="1.0", help="For --sample: below 1, likely tokens get likelier."),
]
TopK = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        show_default="0",
        help="For --sample: draw from the K likeliest tokens; 0: from all.",
    ),
]
SampleSeed = Annotated[
    int | None,
    typer.Option(show_default="1", help="For --sample: another seed draws other samples."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from cbmi import __version__

        print(f"cbmi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """What holds for every command; the help text of the program stands above."""


@contextmanager
def stopping() -> Iterator[None]:
    """Training that SIGTERM stopped has done as told: status 0. Ctrl-C should stop scripts: 130."""
    try:
        yield
    except TrainingStopped as stopped:
        raise typer.Exit(130 if stopped.signal_number == signal.SIGINT else 0) from None


@contextmanager
def writer(path: Path | None, *inputs: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when it is complete; never one of the inputs."""
    from cbmi.files import atomic_file, disk_errors
    from cbmi.progress import say

    if path is None:
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:
            raise NobodyReads from None
        return
    shown = path
    path = path.resolve()  # a link stays a link
    check_output(path, *inputs)
    if path.suffix in (".gz", ".xz", ".zst"):
        raise UserError(f"{path}: results are written as plain text; leave out '{path.suffix}'.")
    if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
        with disk_errors(path), open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        yield file
    say(f"Wrote {shown}")


@contextmanager
def spool(path: Path | None) -> Iterator[Path]:
    """A temporary folder, beside `path` if possible, for what has to wait before it is written."""
    from cbmi.files import disk_errors, temporary_folder

    beside = path.resolve().parent if path and (path.is_file() or not path.exists()) else None
    with temporary_folder(beside, "waiting") as folder, disk_errors(folder):
        yield folder


def check_output(path: Path, *inputs: str | None) -> None:
    """Refuse to write to a folder, or over a file that is read."""
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; name a file to write to.")
    for name in inputs:
        if name and path.is_file() and Path(name).exists() and path.samefile(name):
            raise UserError(f"{name} would be overwritten by -o {path}: choose another name.")
