"""The demo: the whole job on the built-in corpus, in a few minutes on two CPU cores.

One translator and its language model are trained with cross-entropy; from there one copy goes on with cross-entropy
and one with CBMI weights, for as many steps. The corpus knows the truth about itself, so CBMI can be checked.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cbmi.analysis.heatmap import write_page
from cbmi.analysis.ranking import roc_auc
from cbmi.analysis.score import score_pairs
from cbmi.analysis.words import words
from cbmi.config import read_run_file
from cbmi.data.demo import write as write_corpus
from cbmi.errors import UserError
from cbmi.evaluation.metrics import Report, evaluate
from cbmi.files import disk_errors, write_atomically
from cbmi.progress import clock, say
from cbmi.training.run import Run
from cbmi.training.train import train
from cbmi.training.trained import Trained
from cbmi.yaml_text import dump_yaml

PRETRAIN_STEPS, ADAPT_STEPS = 450, 200
SYSTEMS = {"CE": "ce", "CBMI": "cbmi"}


def run_demo(folder: Path, seed: int) -> dict[str, float]:
    """Do all of it, print what came out, and give back how well CBMI agrees with the corpus's truth."""
    begun = time.monotonic()
    corpus = folder / "corpus"
    earlier = Run(folder / "pretrain")
    if earlier.config_file.exists() and earlier.config().seed != seed:
        raise UserError(f"{folder} holds a demo with seed {earlier.config().seed}: choose another folder with -o.")
    say(f"Writing the corpus to {corpus}")
    with disk_errors(corpus):
        corpus.mkdir(parents=True, exist_ok=True)
        write_corpus(corpus, seed)
    for name in ("pretrain", *SYSTEMS.values()):
        train(read_run_file(write_run_file(folder, name, seed)))
    seconds = {name: _training_seconds(folder / name) for name in ("pretrain", *SYSTEMS.values())}
    report = evaluate(_lines(corpus / "test.de"), {key: _translations(folder, run) for key, run in SYSTEMS.items()})
    records = score_training_pairs(folder)
    agreement = agreement_with_truth(records)
    page = folder / "heatmap.html"
    write_page(_page_records(folder, records), page, "CBMI of the demo corpus", _introduction(agreement))
    print(_summary(folder, report, seconds, records, agreement))
    print(f"\nToken heat maps: {page.resolve()}\nThe whole demo took {clock(time.monotonic() - begun)}.")
    return agreement


def write_run_file(folder: Path, name: str, seed: int) -> Path:
    """The run file of one of the demo's runs; any of them can be trained again by `cbmi train`."""
    corpus = folder / "corpus"
    pretraining = name == "pretrain"
    stage = {"name": name, "objective": "ce", "language_model": "off", "steps": ADAPT_STEPS}
    if name == "cbmi":
        stage |= {"objective": "cbmi", "language_model": "frozen"}
    elif pretraining:
        stage |= {"language_model": "train", "steps": PRETRAIN_STEPS}
    values: dict[str, Any] = {
        "seed": seed,
        "output": str(folder / name),
        "data": {
            "source": "en",
            "target": "de",
            "train": [str(corpus / "train.en"), str(corpus / "train.de")],
            "valid": [str(corpus / "valid.en"), str(corpus / "valid.de")],
            "test": {"test": [str(corpus / "test.en"), str(corpus / "test.de")]},
            "vocabulary": {"size": 2400},
        },
        "model": {"preset": "tiny", "attention_dropout": 0.0, "activation_dropout": 0.0},
        "batch": {"tokens": 1600},
        "optimizer": {"peak_lr": 2.0e-3 if pretraining else 7.0e-4, "warmup": 200 if pretraining else 50},
        "stages": [stage],
        "validate": {"every": stage["steps"], "beam": 4},
        "log": {"every": 50},
    }
    if not pretraining:
        values["initialize"] = str(folder / "pretrain")
    path = folder / f"{name}.yaml"
    write_atomically(path, dump_yaml(values))
    return path


def score_training_pairs(folder: Path) -> list[dict[str, Any]]:
    """Records of all training pairs by the CBMI-adapted run, each with the truth about it."""
    corpus = folder / "corpus"
    pairs = list(zip(_lines(corpus / "train.en"), _lines(corpus / "train.de"), strict=True))
    say(f"Scoring the {len(pairs):,} training pairs")
    records = score_pairs(Trained(folder / "cbmi", precision="fp32"), pairs)
    truth = [json.loads(line) for line in _lines(corpus / "train.truth.jsonl")]
    return [record | true for record, true in zip(records, truth, strict=True)]


def agreement_with_truth(records: list[dict[str, Any]]) -> dict[str, float]:
    """ROC AUC of sentence CBMI (matched above mismatched pairs) and of token CBMI (source above context)."""
    sentences: dict[bool, list[float]] = {True: [], False: []}
    tokens: dict[str, list[float]] = {"source": [], "context": [], "": []}
    for record in records:
        sentences[record["mismatched"]].append(record["sentence_cbmi"])
        if not record["mismatched"]:
            for label, value in labelled_tokens(record):
                tokens[label].append(value)
    return {
        "sentence_auc": roc_auc(sentences[False], sentences[True]),
        "token_auc": roc_auc(tokens["source"], tokens["context"]),
    }


def labelled_tokens(record: dict[str, Any]) -> list[tuple[str, float]]:
    """(label, CBMI) of the tokens that the truth speaks of: each word's first piece, which decides it.

    Further pieces only spell the word out, and the truth says nothing of the punctuation after it.
    """
    spelt = [word for word in words(record["pieces"]) if not word.control]
    labels = zip(spelt, record["labels"], strict=True)
    return [(label, record["cbmi"][word.pieces.start]) for word, label in labels]


def _page_records(folder: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Forty test pairs, and the twenty best and worst training pairs."""
    corpus = folder / "corpus"
    test = list(zip(_lines(corpus / "test.en"), _lines(corpus / "test.de"), strict=True))[:40]
    shown = [record | {"note": "test"} for record in score_pairs(Trained(folder / "cbmi", precision="fp32"), test)]
    ranked = sorted(records, key=lambda record: record["sentence_cbmi"])
    for group, note in ((ranked[:-21:-1], "best of training"), (ranked[:20], "worst of training")):
        for record in group:
            shown.append(record | {"note": note + (", mismatched" if record["mismatched"] else "")})
    return shown


def _introduction(agreement: dict[str, float]) -> str:
    return (
        "Forty test pairs, and the twenty best and worst of the training pairs by sentence CBMI. "
        "One training pair in twenty was mismatched on purpose; sentence CBMI puts matched above mismatched pairs "
        f"with ROC AUC {agreement['sentence_auc']:.3f}, and token CBMI puts words that the source decides above "
        f"words that the German context decides with AUC {agreement['token_auc']:.3f}."
    )


def _summary(folder: Path, report: Report, seconds: dict[str, float], records: list, agreement: dict) -> str:
    lines = ["", "", f"{'':6}{'BLEU':>8}{'chrF':>8}{'ΔBLEU':>8}{'p':>8}{'seconds':>9}"]
    for system, run in zip(report.systems, SYSTEMS.values(), strict=True):
        bleu, chrf = system.metrics["BLEU"], system.metrics["chrF2"]
        tested = ("–", "–") if bleu.difference is None else (f"{bleu.difference:+.2f}", f"{bleu.p_value:.3f}")
        line = f"{system.name:6}{bleu.score:>8.2f}{chrf.score:>8.2f}{tested[0]:>8}{tested[1]:>8}"
        lines.append(f"{line}{seconds['pretrain'] + seconds[run]:>9.0f}")
    lines.append(f"Seconds of training; the first {seconds['pretrain']:.0f} are the stage that both share.")
    lines += ["", "Translations", *_examples(folder)]
    ranked = sorted(records, key=lambda record: record["sentence_cbmi"])
    for title, group in (("best", ranked[:-4:-1]), ("worst", ranked[:3])):
        lines += ["", f"The {title} training pairs by sentence CBMI"]
        for record in group:
            mark = "  (mismatched on purpose)" if record["mismatched"] else ""
            lines.append(f"  {record['sentence_cbmi']:6.2f}  {record['source']}\n          {record['target']}{mark}")
    lines += ["", f"Matched above mismatched pairs: ROC AUC {agreement['sentence_auc']:.3f}"]
    lines.append(f"Source-decided above context-decided tokens: ROC AUC {agreement['token_auc']:.3f}")
    return "\n".join(lines)


def _examples(folder: Path) -> list[str]:
    corpus = folder / "corpus"
    columns = [_lines(corpus / "test.en"), _lines(corpus / "test.de"), _translations(folder, "cbmi")]
    rows = list(zip(*columns, strict=True))
    longest = sorted(rows, key=lambda row: -len(row[0]))[:3]
    return [f"  English    {a}\n  reference  {b}\n  CBMI       {c}" for a, b, c in longest]


def _training_seconds(run: Path) -> float:
    """Time spent in training steps, by the run's log."""
    return sum(json.loads(line).get("seconds", 0.0) for line in _lines(run / "log.jsonl"))


def _translations(folder: Path, run: str) -> list[str]:
    return _lines(folder / run / "test" / "test.txt")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]
