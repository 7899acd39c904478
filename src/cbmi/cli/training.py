"""Commands that make models, and say how fast that goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbmi.cli.app import (
    Checkpoint,
    Device,
    Output,
    Overrides,
    RunFile,
    RunFolder,
    app,
    check_output,
    spool,
    stopping,
    writer,
)
from cbmi.errors import UserError


@app.command()
def train(run_file: RunFile, overrides: Overrides = None) -> None:
    """Train the run that RUN.yaml describes; the same command goes on where it stopped."""
    from cbmi.config import read_run_file

    config = read_run_file(run_file, overrides or ())  # a mistake shows before PyTorch is imported
    from cbmi.training.train import train as train_run

    with stopping():
        train_run(config)


@app.command()
def prepare(run_file: RunFile, overrides: Overrides = None) -> None:
    """Learn the vocabulary and encode the corpus of a run, without training."""
    from cbmi.config import read_run_file

    config = read_run_file(run_file, overrides or ())
    from cbmi.training.run import Run
    from cbmi.training.train import check_run, completed, prepare_run

    config = completed(config)
    objectives = check_run(config)
    run = Run(config.output)
    with run.lock():
        prepare_run(config, run, objectives)


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
    """Write the weight of every training token: a line of numbers for each line of the training text."""
    from cbmi.analysis.weights import write_weights
    from cbmi.config import with_overrides
    from cbmi.training.trained import Trained

    with writer(output) as out, spool(output) as waiting:
        model = Trained(run, checkpoint, device, precision="fp32")
        settings = settings or []
        named = any(setting.startswith("preset=") for setting in settings)  # a preset stands for all settings
        choice = with_overrides({"name": objective} if named else model.config.objective(objective), settings)
        write_weights(model, choice, out, waiting)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to put corpus, runs and page.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the corpus and of training.")] = 1,
) -> None:
    """Train, adapt, translate, score and explain on a built-in corpus, in a few minutes on two CPU cores."""
    from cbmi.experiments.demo import run_demo

    with stopping():
        run_demo(output, seed)


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

    if output:
        check_output(output)
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
