"""Objectives by name: listed, checked before anything is made, and written by users."""

from __future__ import annotations

import re
import sys

import pytest
from tasks import ROOT, cbmi, read_log, refused, run_values, write_run, write_task

from cbmi import train
from cbmi.config import read_config
from cbmi.errors import UserError
from cbmi.objectives import TABLE


def test_the_list_has_every_objective():
    listed = cbmi("objectives").stdout.decode()
    for name, kind in TABLE.items():
        assert f"\n{name}: " in "\n" + listed
        assert kind.equation in listed
        assert kind.paper in listed
        assert all(re.search(rf"\b{setting}\b", listed) for setting in kind.model_fields)


def test_the_method_page_has_every_objective():
    page = (ROOT / "docs" / "method.md").read_text()
    for name, kind in TABLE.items():
        assert f"`{name}`" in page
        assert kind.paper.split(":")[0] in page
        assert all(f"`{setting}`" in page for setting in kind.model_fields)


REFUSED = [
    (
        {"name": "cbmi"},
        "off",
        "objective 'cbmi' needs a language model: give this stage language_model: frozen, cached "
        "or joint",
    ),
    ({"name": "prior-lm"}, "off", "objective 'prior-lm' needs a language model"),
    (
        {"name": "fusion-prenorm"},
        "off",
        "needs a language model: give this stage language_model: frozen",
    ),
    (
        {"name": "fusion-postnorm"},
        "joint",
        "needs a frozen language model: set language_model: frozen",
    ),
    (
        {"name": "prior-tm", "interval": [0.0, 8.0]},
        "off",
        "objective 'prior-tm' needs a language model",
    ),
    (
        {"name": "weights-file", "file": "no-such-file"},
        "off",
        "no-such-file: there is no such file",
    ),
    ({"name": "self-paced", "samples": -5}, "off", "samples"),
    ({"name": "focal", "alpha": 1.1}, "off", "alpha"),
    ({"name": "prior-selection", "thresholds": [8.0, 0.0]}, "frozen", "should not be above"),
]


@pytest.mark.parametrize(
    ("objective", "language_model", "expected"), REFUSED, ids=[r[0]["name"] for r in REFUSED]
)
def test_bad_stages_are_refused_before_anything_is_made(
    tmp_path, objective, language_model, expected
):
    write_task(tmp_path, train=20, valid=4)
    first = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 2}
    second = {"name": "adapt", "objective": objective, "language_model": language_model, "steps": 2}
    with pytest.raises(UserError) as caught:
        train(read_config(write_run(tmp_path, stages=[first, second])))
    assert expected in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_prior_needs_a_translator_that_has_learnt(tmp_path):
    write_task(tmp_path, train=20, valid=4)
    stage = {"name": "only", "objective": "prior-tm", "steps": 2}
    with pytest.raises(
        UserError, match="'prior-tm' needs a translator to learn from: put a stage before it"
    ):
        train(read_config(write_run(tmp_path, stages=[stage])))


def test_segmentation_cannot_change_on_the_fly(tmp_path):
    """BMI and files of weights go by the pieces of preparation, so no setting may vary them."""
    write_task(tmp_path, train=20, valid=4)
    stages = [{"name": "bmi", "objective": "bmi", "steps": 2}]
    values = run_values(tmp_path, stages=stages)
    values["data"]["vocabulary"]["dropout"] = 0.1
    message = refused("train", write_run(tmp_path, **values))
    assert "data.vocabulary: unknown key 'dropout'" in message


def test_a_bad_file_of_weights_can_be_mended(tmp_path):
    """What was encoded stays, and the settings may still change: nothing has been trained."""
    write_task(tmp_path, train=20, valid=4)
    (tmp_path / "weights.txt").write_text("1\n" * 19)
    stages = [
        {
            "name": "w",
            "objective": {"name": "weights-file", "file": str(tmp_path / "weights.txt")},
            "steps": 2,
        }
    ]
    path = write_run(tmp_path, stages=stages)
    assert "line 1: 1 number for" in refused("train", path)
    message = refused("train", path, "stages.w.objective.per=pair")
    assert "has 19 lines, but the training text has 20" in message
    (tmp_path / "weights.txt").write_text("1\n" * 20)
    assert not any((tmp_path / "run" / "data" / "train" / "statistics").iterdir())
    result = cbmi("train", path, "stages.w.objective.per=pair")
    assert result.returncode == 0
    assert "Encoding" not in result.stderr.decode()
    (tmp_path / "weights.txt").write_text("2\n" * 20)
    message = refused("train", path, "stages.w.objective.per=pair", "stages.w.steps=4")
    assert "weights.txt has changed since this run first read it" in message


def test_a_stage_that_cannot_be_added_leaves_the_run_as_it_was(tmp_path):
    write_task(tmp_path, train=20, valid=4)
    first = {"name": "ce", "steps": 2}
    assert cbmi("train", write_run(tmp_path, stages=[first])).returncode == 0
    before = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "weights.txt").write_text("few\n" * 20)
    objective = {"name": "weights-file", "file": str(tmp_path / "weights.txt"), "per": "pair"}
    path = write_run(tmp_path, stages=[first, {"name": "w", "objective": objective, "steps": 2}])
    assert "line 1" in refused("train", path)
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    (tmp_path / "weights.txt").write_text("0.5\n" * 20)
    assert cbmi("train", path).returncode == 0
    assert [
        record["weight_mean"] for record in read_log(tmp_path / "run") if "weight_mean" in record
    ] == [0.5, 0.5]


OWN = '''
from cbmi.objectives import Weighting


class Halves(Weighting):
    """Every token counts half."""

    by: float = 0.5

    def token_weights(self, scores):
        return scores.nmt.detach() * 0 + self.by
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module with an objective, and a package of the user's that registers it."""
    write_task(tmp_path, train=20, valid=4)
    (tmp_path / "halves_module.py").write_text(OWN)
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cbmi.objectives]\nhalves = halves_module:Halves\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("halves_module", "broken"):  # of another test's folder
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["halves", "halves_module:Halves"])
def test_objectives_of_ones_own(own, name):
    stage = {"name": "half", "objective": {"name": name, "clip": [0.0, 0.25]}, "steps": 2}
    path = write_run(own, stages=[stage])
    assert cbmi("train", path).returncode == 0
    assert read_log(own / "run")[0]["weight_mean"] == 0.25
    assert cbmi("translate", own / "run", input=b"ba da\n").returncode == 0
    assert "unknown key 'bye' (did you mean 'by'?)" in refused(
        "train", path, "stages.half.objective.bye=1"
    )


BROKEN = {
    "Attribute": (
        "needs: ClassVar = frozenset({'lm'})",
        "'broken:Attribute' has 'needs' as an attribute; it should be a method",
    ),
    "Needy": (
        "def needs(self): return frozenset({'lmm'})",
        "'broken:Needy' needs 'lmm', which training does not provide",
    ),
    "Sampler": (
        "def needs(self): return frozenset({'samples'})",
        "needs 'samples' but has no setting 'samples'",
    ),
    "Idle": ("def term(self, chunk): ...", "has a method 'term' but does not need 'distribution'"),
    "Missing": ("pass", "'broken:Missing' is not a class that derives from"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_objectives_of_ones_own_that_are_wrong(own, name):
    body, expected = BROKEN[name]
    base = "object" if name == "Missing" else "Weighting"
    (own / "broken.py").write_text(
        "from typing import ClassVar\nfrom cbmi.objectives import Weighting\n\n"
        f"class {name}({base}):\n    {body}\n"
    )  # fmt: skip
    stage = {"name": "own", "objective": f"broken:{name}", "steps": 2}
    assert expected in refused("train", write_run(own, stages=[stage]))


def test_a_module_that_cannot_be_imported(own):
    (own / "broken.py").write_text("1 / 0\n")
    stage = {"name": "own", "objective": "broken:Any", "steps": 2}
    assert "'broken' cannot be imported: ZeroDivisionError" in refused(
        "train", write_run(own, stages=[stage])
    )


def test_registered_objectives_are_listed(own):
    """Also beside one that is broken, and one that has the name of one of ours."""
    entries = own / "halves-1.0.dist-info" / "entry_points.txt"
    entries.write_text(
        entries.read_text() + "bad = no_module:Thing\nfocal = halves_module:Halves\n"
    )
    listed = cbmi("objectives").stdout.decode()
    assert "halves: Every token counts half." in listed
    assert "bad: 'no_module' cannot be imported" in listed
    assert listed.count("\nfocal: ") == 1
