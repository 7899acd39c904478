"""Tiny tasks for tests, and commands as a user runs them."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from cbmi.cli import main
from cbmi.config import RunSettings
from cbmi.data.corpus import Corpus
from cbmi.objectives import TABLE
from cbmi.schema import check
from cbmi.training.live_run import LiveRun
from cbmi.training.run import RunDirectory
from cbmi.training.world import World

ROOT = Path(__file__).parents[1]
PIECES = 60  # of the vocabulary of `random_corpus` and of the networks of `tiny_live_run`
WORLD = World(0, 1, torch.device("cpu"))
WORDS = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


def write_task(
    folder: Path, train: int = 200, valid: int = 20, reverse: bool = False, seed: int = 1
) -> None:
    """train, valid and test files in which the target is the source, or the source reversed."""
    generator = random.Random(seed)
    for part, count in (("train", train), ("valid", valid), ("test", valid)):
        sources = []
        targets = []
        for _ in range(count):
            words = generator.choices(WORDS, k=generator.randint(2, 8))
            sources.append(" ".join(words) + "\n")
            targets.append(" ".join(reversed(words) if reverse else words) + "\n")
        (folder / f"{part}.src").write_text("".join(sources))
        (folder / f"{part}.tgt").write_text("".join(targets))


def run_values(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a tiny two-stage run on the files of `write_task`; changes replace whole keys.

    As in the paper: no average of the weights, and a schedule that any number of steps has.
    """
    values = {
        "seed": 1,
        "output": str(folder / "run"),
        "data": {
            "source": "xx",
            "target": "yy",
            "train": [str(folder / "train.src"), str(folder / "train.tgt")],
            "valid": [str(folder / "valid.src"), str(folder / "valid.tgt")],
            "vocabulary": {"size": 350},
        },
        "model": {"preset": "tiny", "width": 32, "feed_forward": 64, "heads": 2},
        "batch": {"tokens": 200},
        "optimizer": {"peak_lr": 3.0e-3, "warmup": 20},
        "stages": [
            {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 8},
            {
                "name": "adapt",
                "objective": {"name": "cbmi"},
                "language_model": "frozen",
                "steps": 8,
            },
        ],
        "ema": 0.0,
        "validate": {"every": 4, "beam": 2},
        "log": {"every": 1},
    }
    values |= changes
    values["optimizer"] = {"schedule": "inverse-sqrt"} | values["optimizer"]
    return values


def every_objective(folder: Path, steps: int) -> list[dict[str, Any]]:
    """Stages that take a run through all objectives; writes the weights that one of them reads."""
    lines = (folder / "train.src").read_text().splitlines()
    (folder / "weights.txt").write_text("".join(f"{len(line) % 5 / 4}\n" for line in lines))
    special = {
        "freq-exp": {"weight_drop": 0.3},
        "self-paced": {"samples": 2},
        "prior-selection": {"thresholds": [-0.1, 0.1]},
        "weights-file": {"file": str(folder / "weights.txt"), "per": "pair"},
    }
    stages = [{"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 4}]
    for name in TABLE:
        if name == "ce":
            continue
        objective = {"name": name, **special.get(name, {})}
        stages.append(
            {"name": name, "objective": objective, "language_model": "frozen", "steps": steps}
        )
    joint = {"language_model": "joint", "steps": steps}
    shuffled = {"name": "cbmi", "shuffled": True}
    stages.append({"name": "shuffled", "objective": shuffled, **joint})
    stages.append({"name": "joint", "objective": {"name": "prior-selection"}, **joint})
    return stages


def write_run(folder: Path, name: str = "run.yaml", **changes: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(run_values(folder, **changes)))
    return path


def without_dropout(**sizes: Any) -> dict[str, Any]:
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return {"preset": "tiny", "width": 32, "feed_forward": 64, "heads": 2} | rates | sizes


def random_corpus(folder: Path, pairs: int = 90) -> Corpus:
    """A corpus of random ids, as preparation would have left it in the folder."""
    random_numbers = np.random.default_rng(0)
    lengths = {
        "source": random_numbers.integers(1, 12, pairs),
        "target": random_numbers.integers(1, 15, pairs),
    }
    tokens = {}
    for side, sizes in lengths.items():
        tokens[side] = int(sizes.sum())
        ids = random_numbers.integers(4, PIECES, tokens[side]).astype(np.uint16)
        ids.tofile(folder / f"{side}.ids")
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        offsets.tofile(folder / f"{side}.offsets")
    np.arange(pairs).tofile(folder / "lines")
    meta = {"pairs": pairs, "dtype": "uint16", "tokens": tokens}
    (folder / "meta.json").write_text(json.dumps(meta))
    return Corpus(folder)


def tiny_settings(folder: Path, **changes: Any) -> RunSettings:
    """Settings of a run with very small networks; changes replace whole keys."""
    model = {"preset": "tiny", "width": 8, "feed_forward": 16, "heads": 2}
    model.update({"encoder_layers": 1, "decoder_layers": 1})
    return check(RunSettings, run_values(folder, **{"model": model, **changes}), "")


def tiny_live_run(folder: Path, **changes: Any) -> LiveRun:
    """The networks of such a run; nothing has been prepared or trained."""
    config = tiny_settings(folder, **changes)
    return LiveRun(config, RunDirectory(config.output), (PIECES, PIECES), WORLD)


def environment() -> dict[str, str]:
    """One thread each; what dies in native code says where it was."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def cbmi(*arguments: str | Path, input: bytes = b"") -> subprocess.CompletedProcess:
    """Run a command as a user does, but in this process.

    Importing PyTorch again would take longer than most commands.
    """
    streams = [
        io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (input, b"", b"")
    ]
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["cbmi", *map(str, arguments)]
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    for stream in streams[1:]:
        stream.flush()
    stdout = streams[1].buffer.getvalue()
    stderr = streams[2].buffer.getvalue()
    return subprocess.CompletedProcess(arguments, status, stdout, stderr)


def two_ranks(*arguments: str | Path) -> subprocess.CompletedProcess:
    """What torchrun gives with these arguments: two processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, timeout=300)


def refused(*arguments: str | Path, **settings: Any) -> str:
    """The one sentence with which a command refuses, after checking that it does so properly."""
    result = cbmi(*arguments, **settings)
    message = result.stderr.decode().strip().splitlines()[-1]
    assert result.returncode == 2, result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()
    assert message.startswith("cbmi: ")
    assert message.endswith(".")
    return message


def read_log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
