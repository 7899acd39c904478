"""Every objective fine-tuned from one shared first stage: that all run at full size, and what each costs.

    python benchmarks/objectives.py recipes/multi30k.yaml OUT [--steps 1000] [--seconds 550] [KEY=VALUE ...]

The first stage is that of the run file; from its best checkpoint each objective goes on for as many steps, with a
frozen language model where it needs one. OUT/results.jsonl gets a line an objective as it is done, and the table is
printed last. The same command goes on with those that are missing; with --seconds it begins none after that time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from cbmi.analysis.weights import write_weights
from cbmi.config import read_run_file
from cbmi.objectives import TABLE
from cbmi.training.run import Run
from cbmi.training.train import train
from cbmi.training.trained import Trained
from cbmi.yaml_text import dump_yaml

SYSTEMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in TABLE},
    "cbmi, shuffled": {"name": "cbmi", "shuffled": True},
}


def run_values(options: argparse.Namespace) -> dict[str, Any]:
    return read_run_file(options.run_file, options.overrides).plain()


def train_values(values: dict[str, Any], folder: Path) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".yaml")
    path.write_text(dump_yaml(values | {"output": str(folder)}))
    train(read_run_file(path))
    return Run(folder)


def start(options: argparse.Namespace) -> Run:
    """The first stage, and weights for `weights-file`."""
    values = run_values(options)
    run = train_values(values | {"stages": values["stages"][:1]}, options.output / "start")
    file = options.output / "weights.txt"
    if not file.exists():
        with open(file, "w") as output:
            write_weights(Trained(run.path), {"name": "cbmi"}, output, options.output / "spool")
    return run


def adapt(system: str, first: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with one objective; gives what goes into the table."""
    values, objective = run_values(options), dict(SYSTEMS[system])
    if objective["name"] == "weights-file":
        objective["file"] = str(options.output / "weights.txt")
    if objective["name"] == "fusion-postnorm":
        values["validate"]["length_penalty"] = 1.0  # its scores are not normalised
    needs = TABLE[objective["name"]].model_construct().needs
    stage = {"name": "adapt", "objective": objective, "steps": options.steps}
    stage["language_model"] = "frozen" if "lm" in needs else "off"
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    folder = options.output / system.replace(", ", "-")
    run = train_values(values | {"stages": [stage], "initialize": str(first.path)}, folder)
    records = [json.loads(line) for line in run.log.read_text().splitlines()]
    steps = [record for record in records if "seconds" in record]
    tests = json.loads((run.test / "results.json").read_text())["results"]
    every = values["log"]["every"]
    return {
        "system": system,
        "bleu": {name: result["bleu"] for name, result in tests.items()},
        "valid_bleu": max(record.get("valid_bleu", 0.0) for record in records),
        "valid_ppl": [record["valid_ppl"] for record in records if "valid_ppl" in record][-1],
        "loss": [steps[0]["loss"], steps[-1]["loss"]],
        "ms": 1000 * statistics.median(record["seconds"] / every for record in steps[1:] or steps),
        "gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
        "weights": {key: steps[-1][key] for key in steps[-1] if "weight" in key},
        "seconds": time.perf_counter() - begun,
    }


def table(results: list[dict[str, Any]]) -> str:
    sets = list(results[0]["bleu"])
    titles = ["system", *sets, "valid ppl", "ms/step", "peak GiB", "weight mean", "std", "at 0"]
    lines = [" | ".join(titles), " | ".join(["---", *["--:"] * (len(titles) - 1)])]
    for result in results:
        weights = result["weights"]
        figures = [f"{result['bleu'][name]:.2f}" for name in sets]
        figures += [f"{result['valid_ppl']:.2f}", f"{result['ms']:.1f}"]
        figures += ["–" if result["gib"] is None else f"{result['gib']:.1f}"]
        names = ("weight_mean", "weight_std", "zero_weights")
        figures += [f"{weights[name]:.3f}" if weights else "" for name in names]
        lines.append(" | ".join([f"`{result['system']}`", *figures]))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_file", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_intermixed_args()
    begun = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "results.jsonl"
    results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    first = start(options)
    for system in SYSTEMS:
        if system in [result["system"] for result in results] or time.perf_counter() - begun > options.seconds:
            continue
        results.append(adapt(system, first, options))
        with open(file, "a") as output:
            output.write(json.dumps(results[-1]) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
