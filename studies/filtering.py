"""What filtering by CBMI is worth: spoil part of a corpus, find it again, train on the rest.

    python studies/filtering.py RUN.yaml OUT [--share 0.3] [--devices cuda:0,cuda:0] [--report]
        [KEY=VALUE ...]

A share of the training pairs is spoilt in six ways, in equal parts. The first stage of the run is
trained on that corpus, and its model scores it. For every way of spoiling, a table says how well
each signal ranks good pairs above bad ones (ROC AUC), and the precision and recall of dropping as
many pairs as were spoilt; "and rules" drops copies and odd lengths first. Then runs of the same
length are trained: on the dirty corpus with `ce` and with `cbmi`, on what each signal keeps, and on
the good pairs alone. Of their translations, a table gives BLEU, chrF and the share that copies the
source. RUN.yaml has two stages.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from program import run

import cbmi
from cbmi.data.lines import read_lines
from cbmi.data.text import is_copy, read_corpora, read_pairs
from cbmi.evaluation.ranking import roc_auc
from cbmi.files import read_json, to_json, write_atomically
from cbmi.filtering.rules import SIGNALS, FilterSettings, PairTable, Verdict, pair_features
from cbmi.filtering.scores import CorpusScores
from cbmi.progress import say
from cbmi.reporting.tables import markdown_table
from cbmi.training.world import join_world
from cbmi.yaml_text import dump_yaml

Pair = tuple[str, str]
Figures = dict[str, float]  # by name, as in filtering.json
BY_MODEL = ("CBMI", "likelihood", "CBMI and rules", "likelihood and rules")
TRAINED_ON = ("good", *BY_MODEL, "length ratio", "random")
LEAST = 4  # words on both sides of a pair that is spoilt
# Of `cbmi filter --drop-copies --max-ratio`: those of the table, and that of "and rules".
RATIOS = (1.5, 1.75, 2.0, 3.0)
MAX_RATIO = 1.75
CE = {"ce": {"objective": "ce"}}
CE_AND_CBMI = {"ce": {"objective": "ce"}, "cbmi": {"objective": "cbmi"}}


def pieces(text: str) -> tuple[list[str], str]:
    """Words and what stands between them; characters if there are no spaces."""
    words = text.split()
    return (words, " ") if len(words) >= LEAST else (list(text.strip()), "")


# Ways of spoiling: each gives the target that replaces that of `pair`; `other` is another pair.


def shuffled_target(pair: Pair, other: Pair, draw: random.Random) -> str:
    return other[1]


def copied_source(pair: Pair, other: Pair, draw: random.Random) -> str:
    return pair[0]


def wrong_language(pair: Pair, other: Pair, draw: random.Random) -> str:
    return other[0]


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
    "shuffled targets": shuffled_target,
    "truncated": truncated,
    "copied source": copied_source,
    "wrong language": wrong_language,
    "misordered words": misordered,
    "under-translation": under_translated,
}


def spoil(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[str]]:
    """The corpus with a share of its pairs spoilt, and what was done to each ("" for nothing)."""
    draw = random.Random(seed)
    long_enough = []
    for place, pair in enumerate(pairs):
        if all(len(pieces(side)[0]) >= LEAST for side in pair):
            long_enough.append(place)
    chosen = draw.sample(long_enough, min(len(long_enough), round(share * len(pairs))))
    names = list(KINDS)
    result = list(pairs)
    truth = [""] * len(pairs)
    for count, place in enumerate(chosen):
        name = names[count % len(names)]
        source, target = pairs[place]
        other = pairs[draw.choice(long_enough)]
        spoilt = KINDS[name](pairs[place], other, draw)
        if spoilt != target:
            result[place] = (source, spoilt)
            truth[place] = name
    return result, truth


def model_scores(
    run: Path, files: Sequence[str], folder: Path, device: str
) -> dict[str, np.ndarray]:
    """The scores that `cbmi filter` goes by, by name."""
    with join_world(device) as world:
        model = cbmi.load(run, device=str(world.device), precision="fp32")
        scores = CorpusScores(folder, model, [files])
        scores.check()
        scores.claim()
        scores.complete(world)
        return {name: scores.read(name).scores for name in SIGNALS}


def signals(
    pairs: Sequence[Pair], scored: Mapping[str, np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    """By name, a number for every pair: the higher, the better the pair.

    With rules, it is the lowest for pairs that a rule drops.
    """
    table = unscored(pairs)
    ratio = table.features.log_length_ratio
    ruled_out = dropped_by_rules(table, MAX_RATIO)
    return {
        "CBMI": scored["cbmi"],
        "likelihood": scored["likelihood"],
        "CBMI and rules": np.where(ruled_out, -np.inf, scored["cbmi"]),
        "likelihood and rules": np.where(ruled_out, -np.inf, scored["likelihood"]),
        "length ratio": -np.abs(ratio - np.median(ratio)),
        "random": np.random.default_rng(seed).random(len(pairs)),
    }


def unscored(pairs: Sequence[Pair]) -> PairTable:
    return PairTable(np.zeros(len(pairs)), pair_features(pairs))


def dropped_by_rules(table: PairTable, max_ratio: float) -> np.ndarray:
    """(pairs,) what `cbmi filter --drop-copies --max-ratio` drops."""
    settings = FilterSettings(drop_copies=True, max_ratio=max_ratio)
    return settings.verdicts(table) != Verdict.KEPT


def rules_table(pairs: Sequence[Pair], truth: Sequence[str]) -> str:
    """What the rules that need no model drop, by kind."""
    kinds = np.array(truth)
    table = unscored(pairs)
    rows = []
    for ratio in RATIOS:
        dropped = dropped_by_rules(table, ratio)
        row = [f"`--drop-copies --max-ratio {ratio:g}`"]
        for kind in ["", *KINDS]:
            own = dropped[kinds == kind]
            row.append(f"{own.mean():.1%}" if len(own) else "–")
        rows.append(row)
    header = ["dropped by", "good pairs", *KINDS]
    return markdown_table(header, rows, align="l" + "r" * (len(header) - 1))


def keep_best(values: np.ndarray, count: int) -> np.ndarray:
    """(pairs,) whether each is among the `count` of the highest values; of equal ones the first."""
    kept = np.zeros(len(values), bool)
    kept[np.lexsort((np.arange(len(values)), -values))[:count]] = True
    return kept


def quality(values: np.ndarray, truth: Sequence[str]) -> dict[str, Figures]:
    """By kind: ROC AUC against the good pairs, and recall of dropping as many as are bad.

    Over all kinds, precision as well.
    """
    kinds = np.array(truth)
    bad = kinds != ""
    dropped = ~keep_best(values, int((~bad).sum()))
    result = {}
    for name in [*KINDS, "all"]:
        own = bad if name == "all" else kinds == name
        if own.any():
            result[name] = {
                "auc": roc_auc(values[~bad], values[own]),
                "recall": float(dropped[own].mean()),
            }
    result["all"]["precision"] = float(bad[dropped].mean())
    return result


def write_pairs(folder: Path, name: str, pairs: Sequence[Pair]) -> list[str]:
    files = [folder / f"{name}.source", folder / f"{name}.target"]
    for side, path in enumerate(files):
        write_atomically(path, "".join(pair[side] + "\n" for pair in pairs))
    return [str(path) for path in files]


def experiment(
    out: Path,
    run_file: str,
    settings: Sequence[str],
    corpora: Mapping[str, list[str]],
    systems: Mapping[str, Any],
    devices: str,
) -> None:
    """Train and test systems on corpora; all experiments share their jobs."""
    tasks = {}
    for name, files in corpora.items():
        own = [*settings, f"data.train={json.dumps(files)}"]
        tasks[name] = {"run": run_file, "settings": own}
    name = "-".join(corpora)
    values = {
        "title": f"Training on {name}",
        "output": str(out / name),
        "jobs": str(out / "jobs"),
        "tasks": tasks,
        "systems": dict(systems),
    }
    path = out / f"{name}.yaml"
    write_atomically(path, dump_yaml(values))
    command = [sys.executable, "-m", "cbmi", "experiment", str(path), "--devices", devices]
    subprocess.run(command, check=True)


def scores(
    out: Path, tests: Mapping[str, Sequence[str]], languages: tuple[str, str]
) -> dict[str, dict[str, Figures]]:
    """By system and test set: BLEU, chrF, and the share of translations that copy their source."""
    sources = {}
    for name, files in tests.items():
        sources[name] = [source for source, _ in read_pairs(files, languages, Counter())]
    found: dict[str, dict[str, Figures]] = {}
    for path in sorted((out / "jobs").glob("*/result.json")):
        result = json.loads(path.read_text())
        if result["kind"] != "system":
            continue
        seed = f", seed {result['seed']}" if result["seed"] > 1 else ""
        own = {}
        for name, lines in sources.items():
            output = list(read_lines(str(path.parent / "run" / "test" / f"{name}.txt"), Counter()))
            copies = [is_copy(pair) for pair in zip(lines, output, strict=True)]
            own[name] = {
                "bleu": result["scores"][name]["bleu"],
                "chrf": result["scores"][name]["chrf"],
                "copies": float(np.mean(copies)),
            }
        found[f"{result['task']}, {result['system']}{seed}"] = own
    return found


def table(found: Mapping[str, Any]) -> str:
    """What filtering.json holds, as two tables."""
    of_signals = signals_table(found["signals"], found["pairs"])
    return f"{of_signals}\n\n{scores_table(found['scores'])}"


def signals_table(qualities: Mapping[str, Mapping[str, Figures]], counts: Mapping[str, int]) -> str:
    rows = []
    for kind in [*KINDS, "all"]:
        row = [kind, f"{counts[kind]:,}"]
        for own in qualities.values():
            one = own.get(kind)
            row.append(f"{one['auc']:.3f} ({one['recall']:.0%})" if one else "–")
        rows.append(row)
    precisions = [f"{own['all']['precision']:.0%}" for own in qualities.values()]
    rows.append(["precision", "", *precisions])
    header = ["AUC (recall)", "pairs", *qualities]
    return markdown_table(header, rows, align="l" + "r" * (len(header) - 1))


def scores_table(by_system: Mapping[str, Mapping[str, Figures]]) -> str:
    header = ["trained on, with"]
    for name in next(iter(by_system.values()), {}):
        header += [f"BLEU {name}", f"chrF {name}", f"copies {name}"]
    rows = []
    for system, by_test in by_system.items():
        row = [system]
        for own in by_test.values():
            row += [f"{own['bleu']:.2f}", f"{own['chrf']:.2f}", f"{own['copies']:.1%}"]
        rows.append(row)
    return markdown_table(header, rows, align="l" + "r" * (len(header) - 1))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    unknown = set(options.train_on.split(",")) - set(TRAINED_ON)
    if unknown:
        parser.error(
            f"--train-on: {', '.join(sorted(unknown))} should be of {', '.join(TRAINED_ON)}"
        )
    return options


def train_on_kept(
    options: argparse.Namespace,
    pairs: Sequence[Pair],
    bad: np.ndarray,
    values: Mapping[str, np.ndarray],
) -> None:
    """Train with `ce` on the good pairs, and on as many that each signal ranks highest."""
    good = int((~bad).sum())
    kept = {"good": ~bad}
    for name, own in values.items():
        kept[name] = keep_best(own, good)
    corpora = {}
    for name, own in kept.items():
        if name in options.train_on.split(","):
            chosen = [pair for pair, keep in zip(pairs, own, strict=True) if keep]
            stem = name.replace(" ", "-")
            corpora[stem.lower()] = write_pairs(options.out, stem, chosen)
    # Without a language model, which only the scores need.
    settings = [
        *options.settings,
        "stages.0.language_model=off",
        "stages.1.objective=ce",
        "stages.1.language_model=off",
    ]
    experiment(options.out, options.run_file, settings, corpora, CE, options.devices)


def main() -> None:
    options = parse_options()
    out = options.out
    config = cbmi.read_config(options.run_file, options.settings)
    tests = dict(config.data.test)
    if config.data.valid:
        tests["valid"] = config.data.valid
    files = [corpus.files for corpus in config.data.train]
    clean = list(read_corpora(files, config.data.languages, Counter()))
    pairs, truth = spoil(clean, options.share, options.seed)
    if options.report:
        found = read_json(out / "filtering.json")
        found["scores"] = scores(out, tests, config.data.languages)
        print(table(found) + "\n\n" + rules_table(pairs, truth))
        return
    bad = np.array([kind != "" for kind in truth])
    say(f"{int(bad.sum()):,} of {len(pairs):,} pairs were spoilt")
    corpora = {"dirty": write_pairs(out, "dirty", pairs)}
    write_atomically(out / "truth.txt", "".join(kind + "\n" for kind in truth))
    experiment(out, options.run_file, options.settings, corpora, CE_AND_CBMI, options.devices)
    run = out / "jobs" / "dirty-1-start" / "run"
    device = options.devices.split(",")[0]
    scored = model_scores(run, corpora["dirty"], out / "scores", device)
    values = signals(pairs, scored, options.seed)
    # To look at other ways to combine them.
    np.savez_compressed(out / "signals.npz", **cast(Any, values))
    counts = {name: truth.count(name) for name in KINDS}
    counts["all"] = int(bad.sum())
    qualities = {name: quality(own, truth) for name, own in values.items()}
    found = {
        "pairs": counts,
        "signals": qualities,
        "scores": scores(out, tests, config.data.languages),
    }
    write_atomically(out / "filtering.json", to_json(found))
    if not options.no_training:
        train_on_kept(options, pairs, bad, values)
        found["scores"] = scores(out, tests, config.data.languages)
        write_atomically(out / "filtering.json", to_json(found))
    print(table(found) + "\n\n" + rules_table(pairs, truth))


if __name__ == "__main__":
    run(main)
