"""Commands: parse, call one function, print. A mistake of the user's ends in one sentence and status 2."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from cbmi.errors import UserError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train better translation models by deciding, token by token, how much each training token should count.",
)

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Checkpoint = Annotated[
    str | None, typer.Option(help="A folder of RUN/checkpoints to use instead of the best.", metavar="NAME")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write here, not to standard output.")]
Beam = Annotated[int, typer.Option(min=1, help="Hypotheses kept at a time.")]
LengthPenalty = Annotated[float, typer.Option(min=0, help="Scores are divided by length to this power.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from cbmi import __version__

        print(f"cbmi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What holds for every command; the help text of the program stands above."""


def main() -> None:
    """The command line's entry."""
    try:
        app(prog_name="cbmi")
    except SystemExit as end:
        _leave(end.code)
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
            print(f"cbmi: {error}", file=sys.stderr)
        _leave(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no more to say
        _leave(141)


def _leave(status: int | str | None) -> None:
    """End the process. One of torchrun's ends at once: everything is on disk, and PyTorch's threads sometimes
    abort a process that takes itself apart in the usual way ("terminate called without an active exception")."""
    if isinstance(status, int | None) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)


@app.command()
def train(run_file: RunFile, overrides: Overrides = None) -> None:
    """Train the run that RUN.yaml describes; the same command goes on where it stopped."""
    from cbmi.config import read_run_file

    config = read_run_file(run_file, overrides or ())  # a mistake shows before PyTorch is imported
    from cbmi.training.train import train as train_run

    with _stopping():
        train_run(config)


@app.command()
def prepare(run_file: RunFile, overrides: Overrides = None) -> None:
    """Learn the vocabulary and encode the corpus of a run, without training."""
    from cbmi.config import read_run_file

    config = read_run_file(run_file, overrides or ())
    from cbmi.training.run import Run
    from cbmi.training.train import check_run, prepare_run, with_vocabulary

    config = with_vocabulary(config)
    objectives = check_run(config)
    run = Run(config.output)
    with run.lock():
        prepare_run(config, run, objectives)


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

    with _writer(output) as out:
        model = Trained(run, checkpoint, device)
        translate_lines(model, file, out, beam, length_penalty, nbest, scores)


@app.command()
def score(
    run: RunFolder,
    source: Annotated[str, typer.Option(metavar="FILE", help="Source sentences.")],
    target: Annotated[str, typer.Option(metavar="FILE", help="Their translations.")],
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say, token by token, how much a translation depends on its source (JSON, one pair a line)."""
    import tempfile

    from cbmi.analysis.score import score_files
    from cbmi.training.trained import Trained

    with _writer(output) as out, tempfile.TemporaryDirectory() as folder:
        model = Trained(run, checkpoint, device, precision="fp32")  # differences of logarithms want every digit
        score_files(model, (source, target), out, Path(folder) / "records")


@app.command()
def objectives() -> None:
    """List the training objectives: what each does, its equation, settings, needs and paper."""
    from cbmi.objectives.listing import listing

    print(listing())


@app.command()
def weights(
    run: RunFolder,
    objective: Annotated[str, typer.Option(metavar="KEY", help="One of `cbmi objectives`, or module:Class.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the objective.")
    ] = None,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Write the weight of every training token, a line a line of the training text."""
    import tempfile

    from cbmi.analysis.weights import write_weights
    from cbmi.config import with_overrides
    from cbmi.training.trained import Trained

    with _writer(output) as out, tempfile.TemporaryDirectory() as folder:
        model = Trained(run, checkpoint, device, precision="fp32")
        choice = with_overrides(model.config.objective(objective), settings or ())
        write_weights(model, choice, out, Path(folder) / "weights")


@app.command()
def evaluate(
    systems: Annotated[list[str], typer.Argument(metavar="SYSTEM...", help="Translations, one a line.")],
    reference: Annotated[str, typer.Option(metavar="REF", help="The reference translation.")],
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
    print(evaluate_files(reference, systems, json=json, bootstrap=bootstrap, **settings))


@app.command()
def average(
    run: RunFolder,
    last: Annotated[int | None, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")] = None,
    best: Annotated[int | None, typer.Option(min=1, metavar="K", help="Average the best K checkpoints.")] = None,
) -> None:
    """Average checkpoints; `cbmi translate RUN --checkpoint NAME` uses the result."""
    from cbmi.training.average import average as average_checkpoints
    from cbmi.training.run import Run

    if (last is None) == (best is None):
        raise UserError("average: say either --last K or --best K.")
    kind, count = ("last", last) if last else ("best", best)
    folder = average_checkpoints(Run(run), count, kind)
    print(f"{folder}\nUse it with: cbmi translate {run} --checkpoint {folder.name}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to put corpus, runs and page.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the corpus and of training.")] = 1,
) -> None:
    """Train, adapt, translate, score and explain on a built-in corpus, in a few minutes on two CPU cores."""
    from cbmi.experiments.demo import run_demo

    with _stopping():
        run_demo(output, seed)


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment file.")],
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs and how long they may take.")] = False,
    devices: Annotated[
        str, typer.Option(help="A job at a time on each: cuda:0,cuda:1; one named twice has two side by side.")
    ] = "auto",
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only the I-th of N parts of the jobs, from 0/N to N-1/N.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Only write the report of what is there.")] = False,
) -> None:
    """Train, translate, test and report tasks × systems × seeds; the same command goes on where it stopped."""
    from cbmi.experiments.experiment import run_experiment
    from cbmi.experiments.settings import read_experiment

    plan = read_experiment(file, overrides or [])
    with _stopping():
        status = run_experiment(plan, devices.split(","), shard, dry_run=dry_run, report_only=report)
    raise typer.Exit(status)


corpus = typer.Typer(no_args_is_help=True, help="Public corpora by name.")
app.add_typer(corpus, name="corpus")


@corpus.command("list")
def corpus_list() -> None:
    """List the corpora that can be downloaded."""
    from cbmi.interop.corpora import listing

    print(listing())


@corpus.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `cbmi corpus list`.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The folder; else data/NAME.")] = None,
) -> None:
    """Download a corpus to where the recipes look for it, and check its size."""
    from cbmi.interop.corpora import get_corpus

    get_corpus(name, output or Path("data") / name)


@app.command("prior-accuracy")
def prior_accuracy(
    run: RunFolder,
    source: Annotated[str | None, typer.Option(metavar="FILE", help="Source sentences; else validation's.")] = None,
    target: Annotated[str | None, typer.Option(metavar="FILE", help="Their translations.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say which prior guesses tokens best, by their CBMI: the language model's, the translator's, or CBMI's."""
    from cbmi.analysis.prior_accuracy import pairs_of, prior_accuracy, table
    from cbmi.files import to_json
    from cbmi.training.trained import Trained

    with _writer(output) as out:
        model = Trained(run, checkpoint, device, precision="fp32")
        accuracy = prior_accuracy(model, pairs_of(model, source, target))
        out.write(to_json(accuracy) if json else table(accuracy) + "\n")


@app.command()
def benchmark(
    preset: Annotated[list[str] | None, typer.Option(help="Sizes of the model; may be given several times.")] = None,
    tokens: Annotated[list[int] | None, typer.Option(min=64, help="Tokens a step; several times.")] = None,
    every_objective: Annotated[
        bool, typer.Option("--every-objective", help="All objectives, not CBMI alone.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=4, help="Steps that are timed.")] = None,
    sentences: Annotated[int | None, typer.Option(min=0, help="Sentences to translate; 0: none.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    compile: Annotated[str, typer.Option(help="auto, or off for PyTorch's own operations.")] = "auto",
    recompute_layers: Annotated[bool, typer.Option("--recompute-layers", help="As memory.recompute_layers.")] = False,
    head_tokens: Annotated[int, typer.Option(min=0, help="As memory.head_tokens.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Append JSON lines here.")] = None,
) -> None:
    """Measure the speed of training and translation on this machine, beside peers on an H200."""
    from cbmi.experiments.benchmark import Options, run_benchmark
    from cbmi.training.world import choose_device

    on_gpu = choose_device(device).type == "cuda"
    options = Options(
        presets=tuple(preset or (["base"] if on_gpu else ["tiny"])),
        tokens=tuple(tokens or ([4096, 32768] if on_gpu else [2048])),
        every_objective=every_objective,
        steps=steps or (40 if on_gpu else 4),
        sentences=sentences if sentences is not None else (2048 if on_gpu else 32),
        device=device,
        precision=precision,
        compile=compile,
        recompute_layers=recompute_layers,
        head_tokens=head_tokens,
    )
    print(run_benchmark(options, output))


@contextmanager
def _stopping() -> Iterator[None]:
    """Training that SIGTERM stopped has done what it was told: status 0. After Ctrl-C a script should not go on."""
    from cbmi.training.train import Stopped

    try:
        yield
    except Stopped as stopped:
        raise typer.Exit(130 if stopped.number == signal.SIGINT else 0) from None


@contextmanager
def _writer(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when it is complete."""
    from cbmi.files import atomic_file, disk_errors

    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path = path.resolve()  # a link stays a link
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; name a file to write to.")
    if path.suffix in (".gz", ".xz", ".zst"):
        raise UserError(f"{path}: results are written as plain text; leave out '{path.suffix}'.")
    if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
        with disk_errors(path), open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        yield file
