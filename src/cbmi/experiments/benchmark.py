"""How fast training and translation are on this machine, beside peers on one H200.

The pairs are random, with the lengths of real ones: target ~ lognormal with mean 27, 3 to 120
pieces; source = target × N(1, 0.12); a vocabulary of 32,768 pieces. Training is the loop of `cbmi
train` (batches from disk, forward, backward, clipping, Adam, figures read) without validation and
checkpoints; only real target tokens count. Translation is beam search with random weights; every
sentence is forced to the same number of tokens.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cbmi.config import RunSettings, StageSettings
from cbmi.data.corpus import Corpus
from cbmi.data.statistics import Statistics
from cbmi.data.vocabulary import SPECIALS
from cbmi.decoding import SearchSettings, translate_ids
from cbmi.errors import UserError
from cbmi.files import disk_errors, to_json
from cbmi.model import kernels
from cbmi.objectives import TABLE, build
from cbmi.progress import say
from cbmi.reporting.tables import markdown_table
from cbmi.schema import check
from cbmi.training.live_run import LiveRun
from cbmi.training.networks import new_translator
from cbmi.training.run import RunDirectory
from cbmi.training.stage import StageSession, open_stage
from cbmi.training.validation import SPECIAL
from cbmi.training.world import World, choose_device, choose_precision, device_name
from cbmi.version import __version__

SYSTEMS: dict[str, dict[str, str]] = {
    "ce": {"objective": "ce", "language_model": "off"},
    "cbmi, LM trained jointly": {"objective": "cbmi", "language_model": "joint"},
    "cbmi, LM frozen": {"objective": "cbmi", "language_model": "frozen"},
    "cbmi, LM cached": {"objective": "cbmi", "language_model": "cached"},
}
WARM_UP = 6  # steps before the clock starts


@dataclass(frozen=True)
class BenchmarkSettings:
    presets: tuple[str, ...] = ("base",)
    tokens: tuple[int, ...] = (4096, 32768)
    every_objective: bool = False
    steps: int = 40
    sentences: int = 2048
    length: int = 30  # tokens of every translation
    vocabulary: int = 32768
    device: str = "auto"
    precision: str = "auto"
    compile: str = "auto"
    recompute_layers: bool = False
    head_tokens: int = 0
    norm: str = "post"
    ema: float = 0.0
    r_drop: float = 0.0


@dataclass(frozen=True)
class TrainingSpeed:
    """Of one system: medians over a few blocks of steps."""

    what: str
    preset: str
    tokens: int
    tokens_per_second: float
    spread: tuple[float, float]  # the slowest and the fastest block
    ms_per_step: float
    mfu: float
    waiting: float  # the largest share of a block's time spent waiting for batches
    warm_up_seconds: float
    peak_gib: float | None
    over_ce: float | None = None  # its time per step over that of `ce`
    peer: int | None = None  # tokens per second of the fastest peer


@dataclass(frozen=True)
class TranslationSpeed:
    preset: str
    sentences_per_second: float
    spread: tuple[float, float]
    peer: int | None
    what: str = "translation"


@cache
def peers() -> dict[tuple[str, int, str] | tuple[str, str], int]:
    """What peers reach, by (preset, tokens, system), and by (preset, "translation")."""
    text = resources.files("cbmi.experiments").joinpath("peers.json").read_text(encoding="utf-8")
    record = json.loads(text)
    speeds: dict[tuple[str, int, str] | tuple[str, str], int] = {}
    for row in record["training"]:
        speeds[row["preset"], row["tokens"], row["system"]] = row["per_second"]
    for row in record["translation"]:
        speeds[row["preset"], "translation"] = row["per_second"]
    return speeds


def run_benchmark(settings: BenchmarkSettings, output: Path | None) -> str:
    """Measure; gives a table. Results are appended to `output` as JSON lines, as they come."""
    where = machine(choose_device(settings.device))
    if output:
        with disk_errors(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
    rows: list[TrainingSpeed | TranslationSpeed] = []

    def add(row: TrainingSpeed | TranslationSpeed) -> None:
        rows.append(row)
        say(_summary(row))
        if output:
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps({**asdict(row), "machine": where}) + "\n")

    for preset in settings.presets:
        for tokens in settings.tokens:
            with tempfile.TemporaryDirectory() as folder:
                for row in _measure_training(settings, preset, tokens, Path(folder)):
                    add(row)
        if settings.sentences:
            add(measure_translation(settings, preset))
    return f"{where}\n\n{speed_table(rows)}"


def machine(device: torch.device) -> str:
    """What was measured, and where: day, device, threads and versions."""
    threads = torch.get_num_threads()
    return (
        f"{time.strftime('%Y-%m-%d')}, {device_name(device)}, {threads} threads, "
        f"torch {torch.__version__}, cbmi {__version__}"
    )


def write_random_corpus(folder: Path, pairs: int, vocabulary: int) -> None:
    """A prepared corpus of random ids, with the lengths of real sentences."""
    random = np.random.default_rng(0)
    target = sentence_lengths(random, pairs)
    source = np.clip(target * random.normal(1, 0.12, pairs), 3, 140).astype(np.int64)
    sides = {}
    for name, lengths in (("source", source), ("target", target)):
        sides[name] = (random.integers(SPECIALS, vocabulary, lengths.sum()), lengths)
    write_prepared(folder, sides)


def write_prepared(folder: Path, sides: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """A corpus as `cbmi prepare` writes it; `sides`: (ids, lengths of the sentences) by name."""
    folder.mkdir(parents=True)
    tokens = {}
    pairs = 0
    for name, (ids, lengths) in sides.items():
        ids.astype(np.uint16).tofile(folder / f"{name}.ids")
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        offsets.tofile(folder / f"{name}.offsets")
        tokens[name] = int(offsets[-1])
        pairs = len(lengths)
    np.arange(pairs).tofile(folder / "lines")
    meta = {"pairs": pairs, "dtype": "uint16", "tokens": tokens}
    (folder / "meta.json").write_text(to_json(meta))


def sentence_lengths(random: np.random.Generator, count: int) -> np.ndarray:
    """(count,): like those of news text in pieces; mean 27, from 3 to 120."""
    lengths = random.lognormal(np.log(27) - 0.18, 0.6, count)
    return np.clip(lengths, 3, 120).astype(np.int64)


def benchmark_systems(settings: BenchmarkSettings) -> dict[str, dict[str, str]]:
    """Objective and language model of each system, by label."""
    systems = dict(SYSTEMS)
    if settings.every_objective:
        for name in TABLE:
            if name not in ("ce", "cbmi", "weights-file"):
                needs = build({"name": name}, name).needs()
                language_model = "frozen" if "lm" in needs else "off"
                systems[name] = {"objective": name, "language_model": language_model}
    return systems


def config_for(settings: BenchmarkSettings, preset: str, tokens: int, folder: Path) -> RunSettings:
    """Settings of a run with one stage per system, after a first one."""
    # A frozen language model comes from a stage that trained one, so that stage goes first.
    stages: list[dict[str, Any]] = [{"name": "first", "steps": 1, "language_model": "train"}]
    for number, system in enumerate(benchmark_systems(settings).values()):
        stages.append({"name": f"stage{number}", "steps": 1, **system})
    values = {
        "output": str(folder),
        "data": {
            "source": "xx",
            "target": "yy",
            "train": ["none"],
            "vocabulary": {"size": settings.vocabulary},
        },
        "model": {"preset": preset, "norm": settings.norm},
        "ema": settings.ema,
        "r_drop": settings.r_drop,
        "batch": {"tokens": tokens},
        "stages": stages,
        "device": settings.device,
        "precision": settings.precision,
        "compile": settings.compile,
        "memory": {
            "recompute_layers": settings.recompute_layers,
            "head_tokens": settings.head_tokens,
        },
    }
    return check(RunSettings, values, "benchmark")


def new_live_run(
    settings: BenchmarkSettings, preset: str, tokens: int, folder: Path
) -> tuple[LiveRun, list[Statistics]]:
    """A run on random data, ready for its stages."""
    pairs = max(500, -(-tokens * settings.steps // 27))
    write_random_corpus(folder / "corpus", pairs, settings.vocabulary)
    config = config_for(settings, preset, tokens, folder / "run")
    run = RunDirectory(config.output)
    run.vocab.mkdir(parents=True)
    (run.vocab / "shared.model").touch()
    sizes = (settings.vocabulary, settings.vocabulary)
    live = LiveRun(config, run, sizes, World(0, 1, choose_device(config.device)))
    live.set_language_model_mode(config.stages[0])
    return live, [Statistics(Corpus(folder / "corpus"), sizes)]


def _measure_training(
    settings: BenchmarkSettings, preset: str, tokens: int, folder: Path
) -> Iterator[TrainingSpeed]:
    live, data = new_live_run(settings, preset, tokens, folder)
    ms_of_ce = None
    for number, label in enumerate(benchmark_systems(settings), start=1):
        live.begin_stage(number)
        row = measure_stage(live, data, number, label, preset, settings.steps)
        if label == "ce":
            ms_of_ce = row.ms_per_step
        over_ce = row.ms_per_step / ms_of_ce if ms_of_ce else None
        peer = peers().get((preset, tokens, label))
        yield replace(row, over_ce=over_ce, peer=peer)


def measure_stage(
    live: LiveRun, data: Sequence[Statistics], number: int, label: str, preset: str, steps: int
) -> TrainingSpeed:
    """Train a few blocks of steps of stage `number`, after a warm-up, and time each block."""
    stage: StageSettings = live.config.stages[number]
    objective = build(stage.objective, stage.name)
    on_gpu = live.world.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    block = max(1, steps // 4)
    figures = []
    begun = time.monotonic()
    with open_stage(live, stage, objective, data) as session:
        _steps(session, WARM_UP)
        warm_up_seconds = time.monotonic() - begun
        variants = kernels.compiled_variants()
        session.read_throughput()
        for _ in range(max(1, steps // block)):
            _steps(session, block)
            figures.append(session.read_throughput())
        if kernels.compiled_variants() != variants:
            raise UserError(f"{label}: kernels were compiled again after {WARM_UP} steps.")
    speeds = [record["tokens_per_second"] for record in figures]
    seconds = statistics.median(record["seconds"] for record in figures) / block
    return TrainingSpeed(
        what=label,
        preset=preset,
        tokens=live.config.batch.tokens,
        tokens_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        ms_per_step=1000 * seconds,
        mfu=statistics.median(record["mfu"] for record in figures),
        waiting=max(record["waiting"] for record in figures),
        warm_up_seconds=warm_up_seconds,
        peak_gib=torch.cuda.max_memory_reserved() / 2**30 if on_gpu else None,
    )


def _steps(session: StageSession, count: int) -> None:
    for _ in range(count):
        session.step()
    session.stepper.meter.read()  # waits for the device, as training does when it logs


def measure_translation(settings: BenchmarkSettings, preset: str) -> TranslationSpeed:
    """Translate random sentences a few times, each to `settings.length` tokens."""
    device = choose_device(settings.device)
    config = config_for(settings, preset, 4096, Path("."))
    dtype = choose_precision(settings.precision, device)
    network = new_translator(config, (settings.vocabulary, settings.vocabulary))
    network = network.to(device, dtype).eval().requires_grad_(False)
    random = np.random.default_rng(0)
    lengths = sentence_lengths(random, settings.sentences)
    sentences = []
    for length in lengths:
        sentences.append(random.integers(SPECIALS, settings.vocabulary, length).tolist())
    speeds = []
    for _ in range(4 if device.type == "cuda" else 2):
        begun = time.monotonic()
        translate_ids(network, sentences, SearchSettings(SPECIAL), limit=settings.length)
        speeds.append(settings.sentences / (time.monotonic() - begun))
    speeds = speeds[1:]  # the first compiles kernels
    return TranslationSpeed(
        preset=preset,
        sentences_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        peer=peers().get((preset, "translation")),
    )


def _summary(row: TrainingSpeed | TranslationSpeed) -> str:
    if isinstance(row, TrainingSpeed):
        speed = f"{row.tokens_per_second:,.0f} tokens/s"
        return f"{row.preset}, {row.tokens:,} tokens, {row.what}: {speed}"
    return f"{row.preset}, translation: {row.sentences_per_second:,.1f} sentences/s"


def speed_table(rows: list[TrainingSpeed | TranslationSpeed]) -> str:
    """The results as Markdown; last, the fastest peer on one H200 and how much faster this was."""
    header = [
        "",
        "batch",
        "per second",
        "ms/step",
        "over ce",
        "MFU",
        "waiting",
        "peak GiB",
        "peer, H200",
        "ratio",
    ]
    lines = []
    for row in rows:
        if isinstance(row, TrainingSpeed):
            speed = row.tokens_per_second
            cells = [
                str(row.tokens),
                _speed_text(speed),
                f"{row.ms_per_step:,.1f}",
                "" if row.over_ce is None else f"{row.over_ce:.2f}",
                f"{row.mfu:.0%}",
                f"{row.waiting:.1%}",
                "" if row.peak_gib is None else f"{row.peak_gib:.1f}",
            ]
        else:
            speed = row.sentences_per_second
            cells = ["", _speed_text(speed), "", "", "", "", ""]
        peer = f"{row.peer:,}" if row.peer else ""
        ratio = f"{speed / row.peer:.1f}" if row.peer else ""
        lines.append([f"{row.preset}, {row.what}", *cells, peer, ratio])
    return markdown_table(header, lines, "l" + "r" * (len(header) - 1))


def _speed_text(speed: float) -> str:
    return f"{speed:,.0f}" if speed > 100 else f"{speed:,.1f}"
