"""The demo, whole: what it prints and leaves, and whether CBMI agrees with the corpus's truth."""

from __future__ import annotations

import json

import pytest
from tasks import cbmi as run_cbmi

import cbmi
from cbmi.demo.demo import labelled_tokens, score_training_pairs
from cbmi.evaluation.ranking import roc_auc

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "demo"
    result = run_cbmi("demo", "-o", folder)
    assert result.returncode == 0, result.stderr.decode()
    return folder, result.stdout.decode()


@pytest.fixture(scope="session")
def pairs(demo):
    folder, _ = demo
    model = cbmi.load(folder / "cbmi", precision="fp32")
    return score_training_pairs(model, folder / "corpus")


def test_the_summary_has_everything(demo):
    _, printed = demo
    for part in (
        "BLEU",
        "chrF",
        "ΔBLEU",
        "seconds",
        "CE ",
        "CBMI ",
        "heatmap.html",
        "The whole demo took",
    ):
        assert part in printed
    assert printed.count("  English    ") == 3
    worst = printed.split("The worst training pairs")[1].split("Matched above")[0]
    assert worst.count("(mismatched on purpose)") == 3


def test_both_systems_have_learnt_the_language(demo):
    folder, _ = demo
    for run in ("ce", "cbmi"):
        results = json.loads((folder / run / "test" / "results.json").read_text())["results"]
        assert results["test"]["bleu"] > 85


def test_sentence_cbmi_knows_mismatched_pairs(pairs):
    matched = [pair.scored.sentence_cbmi for pair in pairs if not pair.mismatched]
    mismatched = [pair.scored.sentence_cbmi for pair in pairs if pair.mismatched]
    assert len(mismatched) == len(pairs) // 20
    assert roc_auc(matched, mismatched) >= 0.95


def test_token_cbmi_knows_what_the_source_decides(pairs):
    values = {"source": [], "context": [], "": []}
    for pair in pairs:
        if not pair.mismatched:
            for label, value in labelled_tokens(pair):
                values[label].append(value)
    assert len(values["source"]) > 5000
    assert len(values["context"]) > 5000
    assert roc_auc(values["source"], values["context"]) >= 0.9


def test_the_page_stands_alone(demo):
    page = (demo[0] / "heatmap.html").read_text(encoding="utf-8")
    assert "http://" not in page
    assert "https://" not in page
    assert "worst of training, mismatched" in page


def test_the_demo_again_only_shows_what_is_there(demo):
    """A finished demo trains nothing again and says the same."""
    folder, printed = demo
    again = run_cbmi("demo", "-o", folder).stdout.decode()

    def table(text):
        return [line.split()[:5] for line in text.splitlines() if line.startswith(("CE ", "CBMI "))]

    assert table(again) == table(printed)
