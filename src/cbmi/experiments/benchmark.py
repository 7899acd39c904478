"""How fast training and translation are on this machine, beside peers on one H200.

Random pairs with the lengths of real ones: target ~ lognormal with mean 27, 3 to 120 pieces; source = target ×
N(1, 0.12); 32,768 pieces. Training is the loop of `cbmi train` (batches from disk, forward, backward, clipping,
Adam, figures read) without validation and checkpoints; only real target tokens count. Translation is beam search with
random weights, every sentence forced to the same number of tokens.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cbmi import __version__
from cbmi.config import RunConfig, check
from cbmi.data.corpus import Corpus
from cbmi.data.statistics import Statistics
from cbmi.decoding import translate_ids
from cbmi.errors import UserError
from cbmi.files import disk_errors, to_json
from cbmi.model import kernels
from cbmi.objectives import TABLE, build
from cbmi.progress import say
from cbmi.training.live_run import LiveRun
from cbmi.training.log import figures
from cbmi.training.networks import new_translator
from cbmi.training.run import Run
from cbmi.training.trainer import Trainer
from cbmi.training.validation import SPECIAL
from cbmi.training.world import World, choose_device, choose_precision

# Real target tokens per second of the fastest peer, measured on one H200 on the same lengths (2026-11-15): Hugging
# Face's MarianMT compiled layer by layer (eager for big at 4096), and the paper's own fairseq code.
PEERS = {
    ("base", 4096, "ce"): 94_400,
    ("base", 32768, "ce"): 457_000,
    ("big", 4096, "ce"): 87_800,
    ("big", 32768, "ce"): 243_000,
    ("base", 4096, "cbmi, LM trained along"): 60_800,
    ("base", 32768, "cbmi, LM trained along"): 235_000,
    ("big", 4096, "cbmi, LM trained along"): 59_300,
    ("big", 32768, "cbmi, LM trained along"): 140_000,
    ("base", 4096, "cbmi, LM frozen"): 61_600,
    ("base", 32768, "cbmi, LM frozen"): 285_000,
    ("big", 4096, "cbmi, LM frozen"): 61_400,
    ("big", 32768, "cbmi, LM frozen"): 168_000,
    ("base", "translation"): 1_897,  # sentences/s of the paper's own code; beam 4, 30 tokens
    ("big", "translation"): 1_234,
}
SYSTEMS = {
    "ce": {"objective": "ce", "language_model": "off"},
    "cbmi, LM trained along": {"objective": "cbmi", "language_model": "joint"},
    "cbmi, LM frozen": {"objective": "cbmi", "language_model": "frozen"},
    "cbmi, LM cached": {"objective": "cbmi", "language_model": "cached"},
}
WARM_UP = 6  # steps before the clock starts


@dataclass(frozen=True)
class Options:
    presets: tuple[str, ...] = ("base",)
    tokens: tuple[int, ...] = (4096, 32768)
    every_objective: bool = False
    steps: int = 40
    sentences: int = 2048
    length: int = 30
    vocabulary: int = 32768
    device: str = "auto"
    precision: str = "auto"
    compile: str = "auto"
    recompute_layers: bool = False
    head_tokens: int = 0


def run_benchmark(options: Options, output: Path | None) -> str:
    """Measure; gives a table. Results are appended to `output` as JSON lines, as they come."""
    where = machine(choose_device(options.device))
    if output:
        with disk_errors(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        say(_summary(row))
        if output:
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps(row | {"machine": where}) + "\n")

    for preset in options.presets:
        for tokens in options.tokens:
            measure_training(options, preset, tokens, note)
        if options.sentences:
            note(measure_translation(options, preset))
    return f"{where}\n\n{table(rows)}"


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    threads = f"{torch.get_num_threads()} threads"
    return f"{time.strftime('%Y-%m-%d')}, {name}, {threads}, torch {torch.__version__}, cbmi {__version__}"


def write_corpus(folder: Path, pairs: int, vocabulary: int) -> None:
    """Prepared data as `cbmi prepare` writes them, of random ids."""
    random = np.random.default_rng(0)
    target = sentence_lengths(random, pairs)
    source = np.clip(target * random.normal(1, 0.12, pairs), 3, 140).astype(np.int64)
    folder.mkdir(parents=True)
    for name, lengths in (("source", source), ("target", target)):
        random.integers(4, vocabulary, lengths.sum()).astype(np.uint16).tofile(folder / f"{name}.ids")
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64).tofile(folder / f"{name}.offsets")
    np.arange(pairs).tofile(folder / "lines")
    tokens = {"source": int(source.sum()), "target": int(target.sum())}
    (folder / "meta.json").write_text(to_json({"pairs": pairs, "dtype": "uint16", "tokens": tokens}))


def sentence_lengths(random: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(random.lognormal(np.log(27) - 0.18, 0.6, count), 3, 120).astype(np.int64)


def systems(options: Options) -> dict[str, dict[str, Any]]:
    chosen = dict(SYSTEMS)
    for name, kind in TABLE.items() if options.every_objective else ():
        if name not in ("ce", "cbmi", "weights-file"):
            needs = build({"name": name}, name).needs if isinstance(kind.needs, property) else kind.needs
            chosen[name] = {"objective": name, "language_model": "frozen" if "lm" in needs else "off"}
    return chosen


def config_for(options: Options, preset: str, tokens: int, folder: Path) -> RunConfig:
    stages = [{"name": f"stage{i}", "steps": 1, **s} for i, s in enumerate(systems(options).values())]
    values = {
        "output": str(folder),
        "data": {"source": "xx", "target": "yy", "train": ["none"], "vocabulary": {"size": options.vocabulary}},
        "model": preset,
        "batch": {"tokens": tokens},
        # A language model that rests comes from a stage that trained one, so that stage goes first.
        "stages": [{"name": "first", "steps": 1, "language_model": "train"}, *stages],
        "device": options.device,
        "precision": options.precision,
        "compile": options.compile,
        "memory": {"recompute_layers": options.recompute_layers, "head_tokens": options.head_tokens},
    }
    return check(RunConfig, values, "benchmark")


def new_trainer(options: Options, preset: str, tokens: int, folder: Path) -> Trainer:
    """A run of random data, ready for its stages."""
    write_corpus(folder / "corpus", max(500, -(-tokens * options.steps // 27)), options.vocabulary)
    config = config_for(options, preset, tokens, folder / "run")
    run = Run(config.output)
    run.vocab.mkdir(parents=True)
    (run.vocab / "shared.model").touch()
    sizes = (options.vocabulary, options.vocabulary)
    live = LiveRun(config, run, sizes, World(0, 1, choose_device(config.device)))
    live.place_language_model(config.stages[0])
    objectives = [build(stage.objective, stage.name) for stage in config.stages]
    return Trainer(live, objectives, Statistics(Corpus(folder / "corpus"), sizes), None)


def measure_training(options: Options, preset: str, tokens: int, note: Callable[[dict[str, Any]], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = new_trainer(options, preset, tokens, Path(folder))
        of_ce = None
        for number, label in enumerate(systems(options), start=1):
            trainer.live.begin_stage(number)
            row = {"what": label, "preset": preset, "tokens": tokens, **measure_stage(trainer, number, options.steps)}
            of_ce = row["ms_per_step"] if label == "ce" else of_ce
            row["over_ce"] = row["ms_per_step"] / of_ce
            row["peer"] = PEERS.get((preset, tokens, label))
            note(row)


def measure_stage(trainer: Trainer, number: int, steps: int) -> dict[str, Any]:
    stage, objective = trainer.config.stages[number], trainer.objectives[number]
    on_gpu = trainer.world.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    speeds, shares, waits, block = [], [], [], max(1, steps // 4)
    begun = time.monotonic()
    with trainer.running(stage, objective) as running:
        for _ in range(WARM_UP):
            trainer.step(running)
        figures(running.stepper.meter.read())
        warm_up = time.monotonic() - begun
        compiled = kernels.compiled()
        running.clock.read()
        for _ in range(max(1, steps // block)):
            for _ in range(block):
                trainer.step(running)
            figures(running.stepper.meter.read())
            record = running.clock.read()
            speeds.append((record["tokens_per_second"], record["seconds"] / block))
            shares.append(record["mfu"])
            waits.append(record["waiting"])
        if kernels.compiled() != compiled:
            raise UserError(f"{objective.__class__.__name__}: kernels were compiled anew after {WARM_UP} steps.")
    return {
        "tokens_per_second": statistics.median(speed for speed, _ in speeds),
        "spread": [min(speeds)[0], max(speeds)[0]],
        "ms_per_step": 1000 * statistics.median(seconds for _, seconds in speeds),
        "mfu": statistics.median(shares),
        "waiting": max(waits),
        "warm_up_seconds": warm_up,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30 if on_gpu else None,
    }


def measure_translation(options: Options, preset: str) -> dict[str, Any]:
    device = choose_device(options.device)
    kernels.use(options.compile == "auto")
    model = config_for(options, preset, 4096, Path(".")).model
    dtype = choose_precision(options.precision, device)
    network = new_translator(model, (options.vocabulary, options.vocabulary), shared=True)
    network = network.to(device, dtype).eval().requires_grad_(False)
    random = np.random.default_rng(0)
    lengths = sentence_lengths(random, options.sentences)
    sentences = [random.integers(4, options.vocabulary, length).tolist() for length in lengths]
    speeds = []
    for _ in range(4 if device.type == "cuda" else 2):
        begun = time.monotonic()
        translate_ids(network, sentences, SPECIAL, beam=4, length_penalty=0.6, limit=options.length)
        speeds.append(options.sentences / (time.monotonic() - begun))
    row = {"what": "translation", "preset": preset, "sentences_per_second": statistics.median(speeds[1:])}
    return row | {"spread": [min(speeds[1:]), max(speeds[1:])], "peer": PEERS.get((preset, "translation"))}


def _summary(row: dict[str, Any]) -> str:
    if "tokens" in row:
        return f"{row['preset']}, {row['tokens']:,} tokens, {row['what']}: {row['tokens_per_second']:,.0f} tokens/s"
    return f"{row['preset']}, translation: {row['sentences_per_second']:,.1f} sentences/s"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown; the last columns are the fastest peer on one H200, and how much faster this was."""
    heads = ["", "batch", "per second", "ms/step", "over ce", "MFU", "waiting", "peak GiB", "peer, H200", "ratio"]
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1)]
    for row in rows:
        peer = row["peer"]
        speed = row.get("tokens_per_second") or row["sentences_per_second"]
        cells = [
            f"{row['preset']}, {row['what']}",
            f"{row.get('tokens', '')}",
            f"{speed:,.{0 if speed > 100 else 1}f}",
        ]
        if "tokens" in row:
            peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
            cells += [f"{row['ms_per_step']:,.1f}", f"{row['over_ce']:.2f}", f"{row['mfu']:.0%}"]
            cells += [f"{row['waiting']:.1%}", peak]
        else:
            cells += [""] * 5
        lines.append([*cells, f"{peer:,}" if peer else "", f"{speed / peer:.1f}" if peer else ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
