"""Several references: sacrebleu's own figures, and multi-bleu.perl's counting."""

from __future__ import annotations

import json

import pytest
import sacrebleu
from tasks import cbmi, refused

from cbmi import evaluate
from cbmi.evaluation.multi_bleu import multi_bleu

FIRST = ["the cat sat on the mat", "a dog barked loudly at night", "we went home"]
SECOND = ["a cat was sitting on the mat", "at night a dog barked", "we all went back home"]
SYSTEM = ["the cat was on the mat", "a dog barked at night", "we went back home"]
OTHER = ["cat on mat", "the dog barks", "they went home"]


def test_scores_are_sacrebleus():
    report = evaluate([FIRST, SECOND], {"a": SYSTEM, "b": OTHER}, bootstrap=100)
    metrics = {
        "BLEU": sacrebleu.metrics.BLEU(),
        "chrF2": sacrebleu.metrics.CHRF(),
        "TER": sacrebleu.metrics.TER(),
    }
    for name, metric in metrics.items():
        for system, lines in zip(report.systems, (SYSTEM, OTHER), strict=True):
            expected = metric.corpus_score(lines, [FIRST, SECOND]).score
            assert system.metrics[name].score == pytest.approx(expected)
        assert "nrefs:2" in report.signatures[name]
    assert report.systems[1].metrics["BLEU"].p_value is not None


def test_multi_bleu_counts_as_the_script_does():
    """N-grams are clipped by the largest count of any reference; the closest length counts."""
    found = multi_bleu(["a a b c d"], ["a b c d"], ["a a c d b e"])
    # 1-grams: a twice (second reference), b, c, d: 5 of 5. Lengths 4 and 6 are equally close: 4.
    assert found.precisions[0] == 100.0
    assert found.precisions[1] == 100 * 4 / 4
    assert found.reference_length == 4
    assert "nrefs:2" in found.signature
    one = multi_bleu(SYSTEM, FIRST).precisions
    assert all(
        a <= b for a, b in zip(one, multi_bleu(SYSTEM, FIRST, SECOND).precisions, strict=True)
    )


def test_the_command_takes_several(tmp_path):
    files = {}
    for name, lines in (("first", FIRST), ("second", SECOND), ("system", SYSTEM)):
        files[name] = tmp_path / name
        files[name].write_text("".join(line + "\n" for line in lines))
    options = ("--reference", files["first"], "--reference", files["second"])
    result = cbmi("evaluate", *options, files["system"], "--json", "--multi-bleu")
    assert result.returncode == 0, result.stderr.decode()
    record = json.loads(result.stdout)
    assert record["reference"] == [str(files["first"]), str(files["second"])]
    expected = sacrebleu.corpus_bleu(SYSTEM, [FIRST, SECOND]).score
    assert record["systems"][0]["metrics"]["BLEU"]["score"] == pytest.approx(expected)
    twice = ("--reference", files["first"], "--reference", files["first"])
    assert "the same reference is given twice" in refused("evaluate", *twice, files["system"])
    files["second"].write_text("one line\n")
    assert "lines but the references have 1" in refused("evaluate", *options, files["system"])
