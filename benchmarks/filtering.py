"""What filtering by CBMI is worth: a corpus with a known share of bad pairs, found again, and trained on.

    python benchmarks/filtering.py RUN.yaml OUT [--share 0.3] [--devices cuda:0,cuda:0] [--report] [KEY=VALUE ...]

A share of the training pairs is spoilt in six ways, in equal parts. The run's first stage is trained on that corpus,
and its model scores it. For every way of spoiling, the table says how well each signal puts good pairs above bad ones
(ROC AUC), and precision and recall of dropping as many pairs as were spoilt; "and rules" drops copies and odd lengths
first. Then runs of the same length are trained: on the dirty corpus with `ce` and with `cbmi`, on what each signal
keeps, and on the good pairs alone. Of their translations the table gives BLEU, chrF and the share of copies of their
source. RUN.yaml has two stages.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cbmi.analysis.filter import Scores
from cbmi.analysis.filter_rules import KEPT, SIGNALS, Choice, Table, facts_of
from cbmi.analysis.ranking import roc_auc
from cbmi.config import read_run_file
from cbmi.data.text import is_copy, read_lines, read_pairs
from cbmi.files import to_json, write_atomically
from cbmi.progress import say
from cbmi.training.trained import Trained
from cbmi.training.world import join_world
from cbmi.yaml_text import dump_yaml

Pair = tuple[str, str]
TRAINED_ON = ("good", "CBMI", "likelihood", "CBMI and rules", "likelihood and rules", "length ratio", "random")
LEAST = 4  # words on both sides of a pair that is spoilt
RATIOS, MAX_RATIO = (1.5, 1.75, 2.0, 3.0), 1.75  # of `cbmi filter --drop-copies --max-ratio`


def pieces(text: str) -> tuple[list[str], str]:
    """Words and what stands between them; characters where there are no spaces."""
    return (text.split(), " ") if len(text.split()) >= LEAST else (list(text.strip()), "")


def truncated(pair: Pair, other: Pair, draw: random.Random) -> str:
    words, space = pieces(pair[1])
    return space.join(words[: max(1, round(len(words) * draw.uniform(0.3, 0.6)))])


def under_translated(pair: Pair, other: Pair, draw: random.Random) -> str:
    """A stretch in the middle is missing."""
    words, space = pieces(pair[1])
    missing = max(1, round(len(words) * draw.uniform(0.3, 0.6)))
    first = draw.randint(0, len(words) - missing)
    return space.join(words[:first] + words[first + missing :]) or words[0]


def misordered(pair: Pair, other: Pair, draw: random.Random) -> str:
    words, space = pieces(pair[1])
    for _ in range(10):
        mixed = draw.sample(words, len(words))
        if mixed != words:
            break
    return space.join(mixed)


KINDS: dict[str, Callable[[Pair, Pair, random.Random], str]] = {
    "shuffled targets": lambda pair, other, draw: other[1],
    "truncated": truncated,
    "copied source": lambda pair, other, draw: pair[0],
    "wrong language": lambda pair, other, draw: other[0],
    "misordered words": misordered,
    "under-translation": under_translated,
}


def spoil(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[str]]:
    """The corpus with a share of its pairs spoilt, and what was done to each ("" for nothing)."""
    draw = random.Random(seed)
    long_enough = [n for n, pair in enumerate(pairs) if all(len(pieces(side)[0]) >= LEAST for side in pair)]
    chosen = draw.sample(long_enough, min(len(long_enough), round(share * len(pairs))))
    names, result, truth = list(KINDS), list(pairs), [""] * len(pairs)
    for count, place in enumerate(chosen):
        name = names[count % len(names)]
        other = pairs[draw.choice(long_enough)]
        target = KINDS[name](pairs[place], other, draw)
        if target != pairs[place][1]:
            result[place], truth[place] = (pairs[place][0], target), name
    return result, truth


def model_scores(run_folder: Path, files: Sequence[str], folder: Path, device: str) -> dict[str, np.ndarray]:
    """The scores that `cbmi filter` goes by, by name."""
    with join_world(device) as world:
        found = Scores(folder, Trained(run_folder, None, str(world.device), precision="fp32"), files)
        found.check()
        found.claim()
        found.complete(world)
        return {name: found.read(name).scores for name in SIGNALS}


def signals(pairs: Sequence[Pair], scored: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """By name, a number for every pair: the higher, the better the pair; with rules, the lowest where one applies."""
    table = unscored(pairs)
    ratio, ruled_out = table.lengths, dropped_by_rules(table, MAX_RATIO)
    return {
        "CBMI": scored["cbmi"],
        "likelihood": scored["likelihood"],
        "CBMI and rules": np.where(ruled_out, -np.inf, scored["cbmi"]),
        "likelihood and rules": np.where(ruled_out, -np.inf, scored["likelihood"]),
        "length ratio": -np.abs(ratio - np.median(ratio)),
        "random": np.random.default_rng(seed).random(len(pairs)),
    }


def unscored(pairs: Sequence[Pair]) -> Table:
    return Table(np.zeros(len(pairs)), *facts_of(pairs))


def dropped_by_rules(table: Table, max_ratio: float) -> np.ndarray:
    """(pairs,) what `cbmi filter --drop-copies --max-ratio` drops."""
    return Choice(drop_copies=True, max_ratio=max_ratio).fates(table) != KEPT


def rules_table(pairs: Sequence[Pair], truth: Sequence[str]) -> str:
    """What the rules that need no model drop, by kind."""
    kinds, known = np.array(truth), unscored(pairs)
    names = ["", *KINDS]
    lines = ["| dropped by | good pairs | " + " | ".join(KINDS) + " |", "|---|" + "--:|" * len(names)]
    for ratio in RATIOS:
        out = dropped_by_rules(known, ratio)
        cells = [f"{out[kinds == name].mean():.1%}" if (kinds == name).any() else "–" for name in names]
        lines.append(f"| `--drop-copies --max-ratio {ratio:g}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def keep_best(values: np.ndarray, count: int) -> np.ndarray:
    """(pairs,) whether each is among the `count` of the highest values; of equal ones the first."""
    kept = np.zeros(len(values), bool)
    kept[np.lexsort((np.arange(len(values)), -values))[:count]] = True
    return kept


def quality(values: np.ndarray, truth: Sequence[str]) -> dict[str, dict[str, float]]:
    """By kind: ROC AUC against the good pairs; recall, and over all precision, of dropping as many as are bad."""
    kinds = np.array(truth)
    bad = kinds != ""
    dropped = ~keep_best(values, int((~bad).sum()))
    result = {}
    for name in [*KINDS, "all"]:
        mine = bad if name == "all" else kinds == name
        if mine.any():
            result[name] = {"auc": roc_auc(values[~bad], values[mine]), "recall": float(dropped[mine].mean())}
    result["all"]["precision"] = float(bad[dropped].mean())
    return result


def write_pairs(folder: Path, name: str, pairs: Sequence[Pair]) -> list[str]:
    files = [folder / f"{name}.source", folder / f"{name}.target"]
    for side, path in enumerate(files):
        write_atomically(path, "".join(pair[side] + "\n" for pair in pairs))
    return [str(path) for path in files]


def run(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "cbmi", *map(str, arguments)], check=True)


def experiment(
    out: Path, run_file: str, settings: Sequence[str], corpora: dict[str, list[str]], systems: dict, devices: str
) -> None:
    """Train and test systems on corpora; all experiments share their jobs."""
    tasks = {
        name: {"run": run_file, "settings": [*settings, f"data.train={json.dumps(files)}"]}
        for name, files in corpora.items()
    }
    name = "-".join(corpora)
    values = {
        "title": f"Training on {name}",
        "output": str(out / name),
        "jobs": str(out / "jobs"),
        "tasks": tasks,
        "systems": systems,
    }
    write_atomically(out / f"{name}.yaml", dump_yaml(values))
    run("experiment", out / f"{name}.yaml", "--devices", devices)


def scores(out: Path, tests: dict[str, tuple[str, ...]]) -> dict[str, dict[str, dict[str, float]]]:
    """By system and test set: BLEU, chrF, and the share of the translations that are their source again."""
    sources = {name: [pair[0] for pair in read_pairs(files, Counter())] for name, files in tests.items()}
    found = {}
    for path in sorted((out / "jobs").glob("*/result.json")):
        result = json.loads(path.read_text())
        if result["kind"] != "system":
            continue
        seed = f", seed {result['seed']}" if result["seed"] > 1 else ""
        own = found[f"{result['task']}, {result['system']}{seed}"] = {}
        for name, source in sources.items():
            output = list(read_lines(str(path.parent / "run" / "test" / f"{name}.txt"), Counter()))
            copies = np.mean([is_copy(pair) for pair in zip(source, output, strict=True)])
            own[name] = {key: result["scores"][name][key] for key in ("bleu", "chrf")} | {"copies": float(copies)}
    return found


def table(found: dict) -> str:
    names = list(found["signals"])
    lines = ["| AUC (recall) | pairs | " + " | ".join(names) + " |", "|---|--:|" + "--:|" * len(names)]
    for kind in [*KINDS, "all"]:
        cells = [
            f"{one['auc']:.3f} ({one['recall']:.0%})" if (one := found["signals"][name].get(kind)) else "–"
            for name in names
        ]
        lines.append(f"| {kind} | {found['pairs'][kind]:,} | " + " | ".join(cells) + " |")
    precision = [f"{found['signals'][name]['all']['precision']:.0%}" for name in names]
    lines += ["| precision | | " + " | ".join(precision) + " |", ""]
    sets = list(next(iter(found["scores"].values()), {}))
    heads = [f"{what} {name}" for name in sets for what in ("BLEU", "chrF", "copies")]
    lines += ["| trained on, with | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    for system, own in found["scores"].items():
        cells = [f"{own[name]['bleu']:.2f} | {own[name]['chrf']:.2f} | {own[name]['copies']:.1%}" for name in sets]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file")
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", default="auto")
    parser.add_argument(
        "--train-on",
        default=",".join(TRAINED_ON),
        metavar="NAME,NAME",
        help="of the good pairs and of what the signals keep (%(default)s)",
    )
    parser.add_argument("--no-training", action="store_true", help="only find the bad pairs")
    parser.add_argument("--report", action="store_true", help="only print what OUT holds")
    options = parser.parse_intermixed_args()
    config = read_run_file(options.run_file, options.settings)
    tests = config.data.test | ({"valid": config.data.valid} if config.data.valid else {})
    wanted = options.train_on.split(",")
    if unknown := set(wanted) - set(TRAINED_ON):
        parser.error(f"--train-on: {', '.join(sorted(unknown))} should be of {', '.join(TRAINED_ON)}")
    pairs, truth = spoil(list(read_pairs(config.data.train, Counter())), options.share, options.seed)
    if options.report:
        found = json.loads((options.out / "filtering.json").read_text()) | {"scores": scores(options.out, tests)}
        print(table(found) + "\n\n" + rules_table(pairs, truth))
        return
    bad = np.array([bool(kind) for kind in truth])
    say(f"{int(bad.sum()):,} of {len(pairs):,} pairs were spoilt")
    out = options.out
    corpora = {"dirty": write_pairs(out, "dirty", pairs)}
    write_atomically(out / "truth.txt", "".join(kind + "\n" for kind in truth))
    ce, both = {"ce": {"objective": "ce"}}, {"ce": {"objective": "ce"}, "cbmi": {"objective": "cbmi"}}
    experiment(out, options.run_file, options.settings, corpora, both, options.devices)
    scored = model_scores(
        out / "jobs" / "dirty-1-start" / "run", corpora["dirty"], out / "scores", options.devices.split(",")[0]
    )
    values = signals(pairs, scored, options.seed)
    np.savez_compressed(out / "signals.npz", **values)  # for looking at other ways to combine them
    counts = {name: truth.count(name) for name in KINDS} | {"all": int(bad.sum())}
    found = {
        "pairs": counts,
        "signals": {name: quality(own, truth) for name, own in values.items()},
        "scores": scores(out, tests),
    }
    write_atomically(out / "filtering.json", to_json(found))
    if not options.no_training:
        kept = {"good": ~bad} | {name: keep_best(own, int((~bad).sum())) for name, own in values.items()}
        corpora = {
            name.lower().replace(" ", "-"): write_pairs(
                out, name.replace(" ", "-"), [p for p, keep in zip(pairs, own, strict=True) if keep]
            )
            for name, own in kept.items()
            if name in wanted
        }
        alone = ["stages.0.language_model=off", "stages.1.objective=ce", "stages.1.language_model=off"]
        experiment(out, options.run_file, [*options.settings, *alone], corpora, ce, options.devices)
        found["scores"] = scores(out, tests)
        write_atomically(out / "filtering.json", to_json(found))
    print(table(found) + "\n\n" + rules_table(pairs, truth))


if __name__ == "__main__":
    main()
