"""Tokens/s of training and sentences/s of translation, on this machine.

    python benchmarks/speed.py --preset base --tokens 4096 32768
    python benchmarks/speed.py --preset small --vocabulary 8000 --steps 6

Random pairs with the lengths of real ones: target ~ lognormal with mean 27, 3 to 120 pieces; source = target ×
N(1, 0.12). Training is the whole loop as `cbmi train` runs it (batches from disk, forward, backward, clipping,
Adam, logging), without validation and checkpoints; only real target tokens count. Translation is beam search with
random weights, every sentence forced to the same number of tokens. Results are printed as a table and written as
JSON lines where --output says.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from cbmi.config import RunConfig, check
from cbmi.data.corpus import Corpus
from cbmi.decoding import beam_search
from cbmi.files import to_json
from cbmi.model import pack
from cbmi.training.live_run import LiveRun
from cbmi.training.networks import new_translator
from cbmi.training.run import Run
from cbmi.training.train import build
from cbmi.training.trainer import Trainer
from cbmi.training.validation import SPECIAL
from cbmi.training.world import World, choose_device, choose_precision

STAGES = {
    "ce": {"objective": "ce", "language_model": "off"},
    "ce + LM": {"objective": "ce", "language_model": "train"},
    "cbmi, LM trained": {"objective": "cbmi", "language_model": "joint"},
    "cbmi, LM frozen": {"objective": "cbmi", "language_model": "frozen"},
}


def write_corpus(folder: Path, pairs: int, vocabulary: int) -> None:
    """Prepared data as `cbmi prepare` writes them, of random ids."""
    random = np.random.default_rng(0)
    target = np.clip(random.lognormal(np.log(27) - 0.18, 0.6, pairs), 3, 120).astype(np.int64)
    source = np.clip(target * random.normal(1, 0.12, pairs), 3, 140).astype(np.int64)
    folder.mkdir(parents=True)
    for name, lengths in (("source", source), ("target", target)):
        random.integers(4, vocabulary, lengths.sum()).astype(np.uint16).tofile(folder / f"{name}.ids")
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64).tofile(folder / f"{name}.offsets")
    np.arange(pairs).tofile(folder / "lines")
    tokens = {"source": int(source.sum()), "target": int(target.sum())}
    (folder / "meta.json").write_text(to_json({"pairs": pairs, "dtype": "uint16", "tokens": tokens}))


def config_for(arguments: argparse.Namespace, folder: Path, tokens: int) -> RunConfig:
    stages = [{"name": f"stage{i}", "steps": arguments.steps, **stage} for i, stage in enumerate(STAGES.values())]
    data = {"source": "xx", "target": "yy", "train": ["none.tsv"], "vocabulary": {"size": arguments.vocabulary}}
    values = {"output": str(folder), "data": data, "model": arguments.preset, "batch": {"tokens": tokens}}
    values |= {"stages": stages, "log": {"every": max(1, arguments.steps // 6)}, "device": arguments.device}
    return check(RunConfig, values | {"precision": arguments.precision}, "speed.py")


def measure_training(arguments: argparse.Namespace, tokens: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "data" / "train", arguments.pairs, arguments.vocabulary)
        config = config_for(arguments, folder / "run", tokens)
        run = Run(config.output)
        run.path.mkdir()
        device = choose_device(config.device)
        objectives = [build(stage.objective, stage.name) for stage in config.stages]
        sizes = (arguments.vocabulary, arguments.vocabulary)
        corpus = Corpus(folder / "data" / "train")
        peaks = []
        trainer = Trainer(LiveRun(config, run, sizes, World(0, 1, device)), objectives, corpus, None)
        if device.type == "cuda":
            watch_memory(trainer, peaks)
        trainer.train()
        records = [json.loads(line) for line in run.log.read_text().splitlines()]
    rows = []
    for number, (stage, label) in enumerate(zip(config.stages, STAGES, strict=True)):
        speeds = [record["tokens_per_second"] for record in records if record["stage"] == stage.name][1:]
        row = {"what": f"train {arguments.preset}, {label}", "batch": tokens, "per_second": statistics.median(speeds)}
        row |= {"unit": "target tokens/s", "spread": [min(speeds), max(speeds)]}
        row["peak_gib"] = round(peaks[number] / 2**30, 2) if peaks else None
        rows.append(row)
    return rows


def watch_memory(trainer: Trainer, peaks: list[int]) -> None:
    """Note the peak of GPU memory in each stage."""
    plain = trainer._train_stage

    def watched(*stage) -> None:
        torch.cuda.reset_peak_memory_stats()
        plain(*stage)
        peaks.append(torch.cuda.max_memory_allocated())

    trainer._train_stage = watched


def measure_translation(arguments: argparse.Namespace, sentences: int) -> dict:
    device = choose_device(arguments.device)
    config = config_for(arguments, Path("."), 4096)
    dtype = choose_precision(arguments.precision, device)
    sizes = (arguments.vocabulary, arguments.vocabulary)
    model = new_translator(config.model, sizes, True).to(device, dtype).eval()
    random = np.random.default_rng(0)
    lengths = np.sort(np.clip(random.lognormal(np.log(27) - 0.18, 0.6, arguments.sentences), 3, 120).astype(np.int64))
    times = []
    for repetition in range(2 + (device.type == "cuda")):
        begun = time.monotonic()
        for start in range(0, len(lengths), sentences):
            part = lengths[start : start + sentences]
            source = pack(random.integers(4, arguments.vocabulary, part.sum()), part, device)
            limits = torch.full((len(part),), arguments.length)
            beam_search(model, source, SPECIAL, beam=4, limits=limits)
        if repetition:
            times.append(time.monotonic() - begun)
    speeds = [arguments.sentences / seconds for seconds in times]
    row = {"what": f"translate {arguments.preset}, beam 4, {arguments.length} tokens", "batch": sentences}
    return row | {
        "per_second": max(speeds),
        "unit": "sentences/s",
        "spread": [min(speeds), max(speeds)],
        "peak_gib": None,
    }


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    date = time.strftime("%Y-%m-%d")
    return (
        f"{date}, {name}, {torch.get_num_threads()} threads, torch {torch.__version__}, commit {commit or 'unknown'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", choices=["tiny", "small", "base", "big"])
    parser.add_argument("--tokens", type=int, nargs="*", default=[2048], help="batch sizes of training")
    parser.add_argument("--sentences-at-once", type=int, nargs="*", default=[64], help="batch sizes of translation")
    parser.add_argument("--steps", type=int, default=30, help="training steps of each kind")
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--sentences", type=int, default=64, help="sentences to translate")
    parser.add_argument("--length", type=int, default=30, help="tokens of each translation")
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    arguments = parser.parse_args()
    where = machine(choose_device(arguments.device))
    rows = []
    for tokens in arguments.tokens:
        rows += measure_training(arguments, tokens)
    rows += [measure_translation(arguments, sentences) for sentences in arguments.sentences_at_once]
    if arguments.output:
        with open(arguments.output, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row | {"machine": where}) + "\n" for row in rows)
    print(f"\n{where}\n")
    print(f"| {'what':42} | batch |  per second | {'unit':15} | peak GiB |")
    print(f"|{'-' * 44}|------:|------------:|{'-' * 17}|---------:|")
    for row in rows:
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        speed = f"{row['per_second']:,.0f}" if row["per_second"] > 100 else f"{row['per_second']:.1f}"
        print(f"| {row['what']:42} | {row['batch']:5} | {speed:>11} | {row['unit']:15} | {peak:>8} |")


if __name__ == "__main__":
    main()
