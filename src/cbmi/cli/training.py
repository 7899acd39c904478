"""Commands that make models, and say how fast that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
def train(
    run_file: RunFile,
    overrides: Overrides = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Set aside what was trained, start from scratch.")
    ] = False,
) -> None:
    """Train the run that RUN.yaml describes; the same command resumes it."""
    import cbmi

    config = cbmi.read_config(
        run_file, overrides or ()
    )  # a mistake shows before PyTorch is imported
    with stopping():
        cbmi.train(config, restart=restart)


@app.command()
def prepare(
    run_file: RunFile,
    overrides: Overrides = None,
    again: Annotated[
        bool, typer.Option("--again", help="Encode again, with the existing vocabulary.")
    ] = False,
) -> None:
    """Learn the vocabulary and encode the corpus of a run, without training."""
    import cbmi

    cbmi.prepare(cbmi.read_config(run_file, overrides or ()), again=again)


@app.command()
def average(
    run: RunFolder,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Average the best K checkpoints.")
    ] = None,
) -> None:
    """Average checkpoints; `cbmi translate RUN --checkpoint NAME` uses the result."""
    from cbmi.training.average import average_checkpoints
    from cbmi.training.run import RunDirectory

    kind: Literal["last", "best"]
    if last is not None and best is None:
        kind = "last"
        count = last
    elif best is not None and last is None:
        kind = "best"
        count = best
    else:
        raise UserError("average: give either --last K or --best K.")
    folder = average_checkpoints(RunDirectory(run), count, kind)
    print(f"{folder}\nUse it with: cbmi translate {run} --checkpoint {folder.name}")


@app.command()
def objectives() -> None:
    """List the training objectives: what each does, its equation, settings, needs and paper."""
    from cbmi.objectives import list_objectives

    print(list_objectives())


@app.command()
def weights(
    run: RunFolder,
    objective: Annotated[
        str, typer.Option(metavar="KEY", help="One of `cbmi objectives`, or module:Class.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the objective."),
    ] = None,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Write the weight of every training token: one line of values per line of the text."""
    import cbmi
    from cbmi.inference.weights import objective_choice, write_weights
    from cbmi.overrides import with_overrides

    with writer(output) as out, spool(output) as waiting:
        model = cbmi.load(run, checkpoint, device, precision="fp32")
        overrides = settings or []
        choice = with_overrides(objective_choice(model, objective, overrides), overrides)
        write_weights(model, choice, out, waiting)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to put corpus, runs and page.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the corpus and of training.")
    ] = 1,
) -> None:
    """Train, adapt, translate, score and explain on a built-in corpus, in a few minutes."""
    from cbmi.demo.demo import run_demo

    with stopping():
        run_demo(output, seed)


@app.command()
def benchmark(
    preset: Annotated[
        list[str] | None, typer.Option(help="Model preset: tiny, small, base or big; repeatable.")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(min=64, help="Tokens per step; repeatable.")
    ] = None,
    every_objective: Annotated[
        bool, typer.Option("--every-objective", help="All objectives, not CBMI alone.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=4, help="Steps that are timed.")] = None,
    sentences: Annotated[
        int | None, typer.Option(min=0, help="Sentences to translate; 0: none.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    compile: Annotated[
        str, typer.Option(help="auto, or off for PyTorch's own operations.")
    ] = "auto",
    recompute_layers: Annotated[
        bool,
        typer.Option("--recompute-layers", help="Same as the setting memory.recompute_layers."),
    ] = False,
    head_tokens: Annotated[
        int, typer.Option(min=0, help="Same as the setting memory.head_tokens.")
    ] = 0,
    norm: Annotated[str, typer.Option(help="Same as the setting model.norm.")] = "post",
    ema: Annotated[float, typer.Option(help="Same as the setting ema.")] = 0.0,
    r_drop: Annotated[float, typer.Option(help="Same as the setting r_drop.")] = 0.0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Append JSON lines here.")
    ] = None,
) -> None:
    """Measure the speed of training and translation on this machine, beside peers on an H200."""
    from cbmi.experiments.benchmark import BenchmarkSettings, run_benchmark
    from cbmi.training.world import choose_device

    if output:
        check_output(output)
    on_gpu = choose_device(device).type == "cuda"
    default_steps = 40 if on_gpu else 4
    default_sentences = 2048 if on_gpu else 32
    settings = BenchmarkSettings(
        presets=tuple(preset or (["base"] if on_gpu else ["tiny"])),
        tokens=tuple(tokens or ([4096, 32768] if on_gpu else [2048])),
        every_objective=every_objective,
        steps=steps or default_steps,
        sentences=default_sentences if sentences is None else sentences,
        device=device,
        precision=precision,
        compile=compile,
        recompute_layers=recompute_layers,
        head_tokens=head_tokens,
        norm=norm,
        ema=ema,
        r_drop=r_drop,
    )
    print(run_benchmark(settings, output))
