"""Commands that make models, and say how fast that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cbmi.cli.app import (
    STUDY,
    TRAIN,
    App,
    Checkpoint,
    Device,
    Output,
    Overrides,
    RunFile,
    RunFolder,
    TargetFile,
    app,
    check_output,
    spool,
    stopping,
    writer,
)
from cbmi.errors import UserError

log = App(help="Send what a run has logged to experiment trackers.")
app.add_typer(log, name="log", rich_help_panel=TRAIN)

Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse data that look wrong, such as swapped sides.")
]


@app.command(rich_help_panel=TRAIN)
def init(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Training text, one sentence per line; or one file with both sides.",
        ),
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Its translation.")
    ] = None,
    valid: Annotated[
        tuple[str, str] | None, typer.Option(metavar="SOURCE TARGET", help="Validation set.")
    ] = None,
    test: Annotated[
        tuple[str, str] | None, typer.Option(metavar="SOURCE TARGET", help="Test set.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="If the file's name does not end with it.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="If the file's name does not end with it.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="RUN.yaml", help="The run file to write.")
    ] = Path("run.yaml"),
) -> None:
    """Write a commented run file for your own text."""
    from cbmi.data.text import pair_files
    from cbmi.files import write_atomically
    from cbmi.inference.new_run import run_file
    from cbmi.progress import say

    if output.exists():
        raise UserError(f"{output}: there is such a file already; choose another name with -o.")
    languages = (source_language, target_language)
    files = pair_files(source, target, "TARGET")
    write_atomically(output, run_file(output, files, languages, valid, test))
    say(f"Wrote {output}. Look at it, then run: cbmi train {output}")


@app.command(
    rich_help_panel=TRAIN,
    epilog="Most used keys: output, data.train, data.valid, model, batch.tokens, "
    "optimizer.peak_lr, optimizer.warmup, stages.NAME.steps, validate.every, seed. docs/guide.md "
    "explains all of them; `cbmi init` writes a run file to begin with.",
)
def train(
    run_file: RunFile,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done and how long it may take."),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Set aside what was trained, start from scratch.")
    ] = False,
    strict: Strict = False,
) -> None:
    """Train the run that RUN.yaml describes; the same command resumes it."""
    import cbmi

    config = cbmi.read_config(
        run_file, overrides or ()
    )  # a mistake shows before PyTorch is imported
    if dry_run and restart:
        raise UserError("train: --dry-run says what would be resumed; leave out --restart.")
    if dry_run:
        from cbmi.training.forecast import describe_run

        print(describe_run(config, strict))
        return
    with stopping():
        cbmi.train(config, restart=restart, strict=strict)


@app.command(rich_help_panel=TRAIN)
def prepare(
    run_file: RunFile,
    overrides: Overrides = None,
    again: Annotated[
        bool, typer.Option("--again", help="Encode again, with the existing vocabulary.")
    ] = False,
    strict: Strict = False,
) -> None:
    """Learn the vocabulary and encode the corpus of a run, without training."""
    import cbmi

    cbmi.prepare(cbmi.read_config(run_file, overrides or ()), again=again, strict=strict)


@app.command(rich_help_panel=TRAIN)
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


@app.command(rich_help_panel=TRAIN)
def objectives() -> None:
    """List the training objectives: what each does, its equation, settings, needs and paper."""
    from cbmi.objectives import list_objectives

    print(list_objectives())


@app.command(rich_help_panel=TRAIN)
def weights(
    run: RunFolder,
    objective: Annotated[
        str, typer.Option(metavar="KEY", help="One of `cbmi objectives`, or module:Class.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of the objective."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help="Another text, or its source side.")
    ] = None,
    target: TargetFile = None,
    output: Output = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Write the weight of every token of the training text: one line of values per line.

    With --source, the weights are those of another text, computed as if the run were trained on it.
    """
    from cbmi.data.text import pair_files
    from cbmi.inference.model import TrainedModel
    from cbmi.inference.weights import objective_choice, write_weights
    from cbmi.overrides import with_overrides

    if target and not source:
        raise UserError("--target needs --source FILE.")
    files = pair_files(source, target) if source else None
    with writer(output, *(files or ())) as out, spool(output) as folder:
        model = TrainedModel(run, checkpoint, device, precision="fp32")
        overrides = settings or []
        choice = with_overrides(objective_choice(model, objective, overrides), overrides)
        write_weights(model, choice, files, out, folder)


@app.command(rich_help_panel=TRAIN)
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


@app.command(rich_help_panel=STUDY)
def benchmark(
    preset: Annotated[
        list[str] | None,
        typer.Option(help="Model preset: tiny, small, medium, base or big; repeatable."),
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


@log.command("push")
def log_push(
    run: RunFolder,
    to: Annotated[
        list[str], typer.Option(metavar="TRACKER", help="tensorboard, wandb or mlflow; repeatable.")
    ],
) -> None:
    """Send a run's figures to trackers: what they do not have yet, and nothing twice."""
    from cbmi.progress import say
    from cbmi.training.trackers import push_log

    say(f"{run}: {push_log(run, to)}")
