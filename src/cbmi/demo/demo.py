"""The demo: the whole job on the built-in corpus, in a few minutes on two CPU cores.

A translator and its language model are trained with cross-entropy. From there, one copy is trained
further with cross-entropy and one with CBMI weights, for as many steps. The corpus knows the truth
about itself, so CBMI can be checked against it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbmi
from cbmi.data.text import Pair
from cbmi.demo.corpus import write as write_corpus
from cbmi.errors import UserError
from cbmi.evaluation.metrics import EvaluationReport
from cbmi.evaluation.ranking import roc_auc
from cbmi.files import disk_errors, write_atomically
from cbmi.inference.base import Model
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.heatmap import HeatmapEntry, write_heatmap
from cbmi.progress import clock, say
from cbmi.reporting.tables import signed
from cbmi.training.records import read_log
from cbmi.training.run import RunDirectory
from cbmi.yaml_text import dump_yaml

PRETRAIN_STEPS = 350
ADAPT_STEPS = 130
PRETRAIN = "pretrain"  # the run that both systems start from
SYSTEMS = {"CE": "ce", "CBMI": "cbmi"}  # by the name in the table: the run
LANGUAGE_MODEL = {PRETRAIN: "train", "ce": "off", "cbmi": "frozen"}  # by run


@dataclass(frozen=True)
class LabelledPair:
    """A training pair as the model scores it, and the truth about it."""

    scored: ScoredPair
    mismatched: bool  # on purpose
    labels: tuple[str, ...]  # of each German word, what decides it: "source", "context" or ""


@dataclass(frozen=True)
class TruthAgreement:
    """How well CBMI agrees with the corpus's truth: areas under the ROC curve."""

    sentence_auc: float  # sentence CBMI: matched above mismatched pairs
    token_auc: float  # token CBMI: what the source decides above what the context decides


def run_demo(folder: Path, seed: int) -> TruthAgreement:
    """Do all of it and print what came out."""
    begun = time.monotonic()
    corpus = folder / "corpus"
    _check_seed(folder, seed)
    say(f"Writing the corpus to {corpus}")
    with disk_errors(corpus):
        corpus.mkdir(parents=True, exist_ok=True)
        write_corpus(corpus, seed)

    for name in (PRETRAIN, *SYSTEMS.values()):
        cbmi.train(write_run_file(folder, name, seed))
    translations = {system: _translations(folder / run) for system, run in SYSTEMS.items()}
    report = cbmi.evaluate(_lines(corpus / "test.de"), translations)

    # float32: CBMI is a difference of logarithms.
    model = cbmi.load(folder / "cbmi", precision="fp32")
    training = score_training_pairs(model, corpus)
    agreement = agreement_with_truth(training)
    page = folder / "heatmap.html"
    entries = _page_entries(model, corpus, training)
    write_heatmap(entries, page, "CBMI of the demo corpus", _introduction(agreement))

    print(_summary(folder, report, training, agreement))
    print(f"\nToken heat maps: {page.resolve()}")
    print(f"The whole demo took {clock(time.monotonic() - begun)}.")
    return agreement


def _check_seed(folder: Path, seed: int) -> None:
    """Refuse a folder that holds a demo with another seed."""
    earlier = RunDirectory(folder / PRETRAIN)
    if earlier.config_file.exists() and earlier.config().seed != seed:
        raise UserError(
            f"{folder} holds a demo with seed {earlier.config().seed}: choose another folder with "
            "-o."
        )


def write_run_file(folder: Path, name: str, seed: int) -> Path:
    """The run file of one of the demo's runs; `cbmi train` can train any of them again."""
    corpus = folder / "corpus"
    is_pretraining = name == PRETRAIN
    stage: dict[str, Any] = {
        "name": name,
        "objective": "cbmi" if name == "cbmi" else "ce",
        "language_model": LANGUAGE_MODEL[name],
        "steps": PRETRAIN_STEPS if is_pretraining else ADAPT_STEPS,
    }
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
        "optimizer": {
            "peak_lr": 2.0e-3 if is_pretraining else 7.0e-4,
            "warmup": 200 if is_pretraining else 50,
        },
        "stages": [stage],
        "validate": {"every": stage["steps"], "beam": 4},
        "log": {"every": 50},
    }
    if not is_pretraining:
        values["initialize"] = str(folder / PRETRAIN)
    path = folder / f"{name}.yaml"
    write_atomically(path, dump_yaml(values))
    return path


def score_training_pairs(model: Model, corpus: Path) -> list[LabelledPair]:
    """All training pairs, each with the truth about it."""
    pairs = _read_pairs(corpus, "train")
    say(f"Scoring the {len(pairs):,} training pairs")
    truth = _lines(corpus / "train.truth.jsonl")
    labelled = []
    for scored, line in zip(model.score(pairs), truth, strict=True):
        record = json.loads(line)
        labelled.append(LabelledPair(scored, record["mismatched"], tuple(record["labels"])))
    return labelled


def agreement_with_truth(pairs: Sequence[LabelledPair]) -> TruthAgreement:
    """How well CBMI tells mismatched pairs, and words that the source decides."""
    matched = []
    mismatched = []
    values_by_label: dict[str, list[float]] = {"source": [], "context": [], "": []}
    for pair in pairs:
        if pair.mismatched:
            mismatched.append(pair.scored.sentence_cbmi)
            continue
        matched.append(pair.scored.sentence_cbmi)
        for label, value in labelled_tokens(pair):
            values_by_label[label].append(value)
    return TruthAgreement(
        sentence_auc=roc_auc(matched, mismatched),
        token_auc=roc_auc(values_by_label["source"], values_by_label["context"]),
    )


def labelled_tokens(pair: LabelledPair) -> list[tuple[str, float]]:
    """(label, CBMI) of each word's first piece, which decides the word.

    Further pieces only spell the word out, and the truth says nothing of punctuation after it.
    """
    spelt = [word for word in pair.scored.words if not word.control]
    cbmi_of_pieces = pair.scored.cbmi.tolist()
    tokens = []
    for word, label in zip(spelt, pair.labels, strict=True):
        tokens.append((label, cbmi_of_pieces[word.pieces.start]))
    return tokens


def _page_entries(
    model: Model, corpus: Path, training: Sequence[LabelledPair]
) -> list[HeatmapEntry]:
    """Forty test pairs, and the twenty best and worst training pairs."""
    test = _read_pairs(corpus, "test")[:40]
    entries = [HeatmapEntry(pair, note="test") for pair in model.score(test)]
    ranked = _worst_first(training)
    groups = {"best of training": ranked[:-21:-1], "worst of training": ranked[:20]}
    for note, group in groups.items():
        for pair in group:
            mark = ", mismatched" if pair.mismatched else ""
            entries.append(HeatmapEntry(pair.scored, note=note + mark))
    return entries


def _introduction(agreement: TruthAgreement) -> str:
    return (
        "Forty test pairs, and the twenty best and worst of the training pairs by sentence CBMI. "
        "One training pair in twenty was mismatched on purpose; sentence CBMI puts matched above "
        f"mismatched pairs with ROC AUC {agreement.sentence_auc:.3f}, and token CBMI puts words "
        "that the source decides above words that the German context decides with AUC "
        f"{agreement.token_auc:.3f}."
    )


def _summary(
    folder: Path,
    report: EvaluationReport,
    training: Sequence[LabelledPair],
    agreement: TruthAgreement,
) -> str:
    lines = ["", "", *_score_table(folder, report)]
    lines += ["", "Translations", *_examples(folder)]
    ranked = _worst_first(training)
    lines += ["", "The best training pairs by sentence CBMI", *_listed(ranked[:-4:-1])]
    lines += ["", "The worst training pairs by sentence CBMI", *_listed(ranked[:3])]
    lines += [
        "",
        f"Matched above mismatched pairs: ROC AUC {agreement.sentence_auc:.3f}",
        f"Source-decided above context-decided tokens: ROC AUC {agreement.token_auc:.3f}",
    ]
    return "\n".join(lines)


def _score_table(folder: Path, report: EvaluationReport) -> list[str]:
    lines = [f"{'':6}{'BLEU':>8}{'chrF':>8}{'ΔBLEU':>8}{'p':>8}{'seconds':>9}"]
    shared = _training_seconds(folder / PRETRAIN)
    for system in report.systems:
        bleu = system.metrics["BLEU"]
        chrf = system.metrics["chrF2"]
        # The first system has nothing to be compared with.
        difference = "–" if bleu.difference is None else signed(bleu.difference)
        p_value = "–" if bleu.p_value is None else f"{bleu.p_value:.3f}"
        seconds = shared + _training_seconds(folder / SYSTEMS[system.name])
        lines.append(
            f"{system.name:6}{bleu.score:>8.2f}{chrf.score:>8.2f}{difference:>8}{p_value:>8}"
            f"{seconds:>9.0f}"
        )
    lines.append(f"Seconds of training; the first {shared:.0f} are the stage that both share.")
    return lines


def _examples(folder: Path) -> list[str]:
    """The three longest test sentences."""
    pairs = _read_pairs(folder / "corpus", "test")
    rows = []
    for (source, target), translation in zip(pairs, _translations(folder / "cbmi"), strict=True):
        text = f"  English    {source}\n  reference  {target}\n  CBMI       {translation}"
        rows.append((len(source), text))
    rows.sort(key=lambda row: -row[0])
    return [text for _, text in rows[:3]]


def _listed(pairs: Sequence[LabelledPair]) -> list[str]:
    lines = []
    for pair in pairs:
        scored = pair.scored
        mark = "  (mismatched on purpose)" if pair.mismatched else ""
        lines.append(f"  {scored.sentence_cbmi:6.2f}  {scored.source}")
        lines.append(f"          {scored.target}{mark}")
    return lines


def _worst_first(pairs: Sequence[LabelledPair]) -> list[LabelledPair]:
    return sorted(pairs, key=lambda pair: pair.scored.sentence_cbmi)


def _training_seconds(run: Path) -> float:
    """Time spent in training steps, by the run's log."""
    return sum(float(record.get("seconds", 0.0)) for record in read_log(RunDirectory(run).log))


def _translations(run: Path) -> list[str]:
    """Of the test set, which training translates at its end."""
    return _lines(run / "test" / "test.txt")


def _read_pairs(corpus: Path, part: str) -> list[Pair]:
    return list(zip(_lines(corpus / f"{part}.en"), _lines(corpus / f"{part}.de"), strict=True))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]
