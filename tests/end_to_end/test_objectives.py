"""Every objective as a user chooses it: by one key in the run file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks import ROOT, cbmi, read_log, refused, run_values, without_dropout, write_run, write_task

from cbmi.analysis.weights import mini_batches
from cbmi.config import read_run_file
from cbmi.data.plan import EpochPlan
from cbmi.data.prepare import open_corpus
from cbmi.errors import UserError
from cbmi.evaluation.metrics import corpus_bleu
from cbmi.objectives import TABLE
from cbmi.training.run import Run
from cbmi.training.train import train
from cbmi.training.trained import Trained

COPY = {
    "model": without_dropout(width=64, feed_forward=256, heads=2),
    "batch": {"tokens": 600},
    "optimizer": {"peak_lr": 3.0e-3, "warmup": 100},
    # Scores that are not normalised, as those of fusion-postnorm, want a full length penalty.
    "validate": {"every": 1000, "beam": 4, "length_penalty": 1.0},
    "log": {"every": 20},
}
SETTINGS = {"self-paced": {"samples": 2}}
CONTROL = ("cbmi", {"shuffled": True})


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A translator that has begun to learn to copy, its language model, and weights for its corpus."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("copy")
    write_task(folder, train=3000, valid=60)
    stage = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 120}
    path = write_run(folder, "start.yaml", **COPY, output=str(folder / "start"), stages=[stage])
    train(read_run_file(path))
    assert bleu(folder / "start", folder) < 90
    result = cbmi("weights", folder / "start", "--objective", "cbmi", "-o", folder / "weights.txt")
    assert result.returncode == 0, result.stderr.decode()
    return folder


def bleu(run: Path, folder: Path) -> float:
    sources, references = ((folder / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    return corpus_bleu(Trained(run).translate(sources, length_penalty=1.0), references)


def adapt(folder: Path, name: str, objective: dict, steps: int, **changes) -> Path:
    stage = {"name": "adapt", "objective": objective, "language_model": "frozen", "steps": steps}
    start = {"output": str(folder / name), "initialize": str(folder / "start"), "stages": [stage]}
    return write_run(
        folder, f"{name}.yaml", **COPY | {"optimizer": {"peak_lr": 2.0e-3, "warmup": 10}} | start | changes
    )


@pytest.mark.parametrize(("key", "settings"), [*((key, SETTINGS.get(key, {})) for key in TABLE), CONTROL])
def test_every_objective_learns_to_copy(started, key, settings):
    torch.set_num_threads(1)
    objective = {"name": key, **settings}
    if key == "weights-file":
        objective["file"] = str(started / "weights.txt")
    name = "-".join([key, *settings])
    train(read_run_file(adapt(started, name, objective, 80)))
    assert bleu(started / name, started) > 95
    assert read_log(started / name)[-1]["valid_bleu"] > 95
    assert (Trained(started / name).fusion is not None) == key.startswith("fusion")
    if "shuffled" in TABLE[key].model_fields:
        last = [record for record in read_log(started / name) if "loss" in record][-1]
        quantiles = [last[f"weight_q{q:02}"] for q in (5, 25, 50, 75, 95)]
        assert quantiles == sorted(quantiles)
        assert {"weight_mean", "weight_std", "zero_weights"} <= last.keys()


def test_fused_runs_translate_with_their_language_model(started):
    train(read_run_file(adapt(started, "fused", {"name": "fusion-prenorm"}, 4)))
    model = Trained(started / "fused")
    fused = model.hypotheses(["ba da fa"], nbest=2)[0]
    model.fusion = None
    alone = model.hypotheses(["ba da fa"], nbest=2)[0]
    assert fused[0].log_probability != alone[0].log_probability


def test_weights_come_back_through_a_file(started):
    """freq-exp weights do not depend on the model: written down and read back, they train the same."""
    for name in ("written", "direct"):
        assert not (started / name).exists()
    result = cbmi("weights", started / "start", "--objective", "freq-exp", "decay=0.5", "-o", started / "freq.txt")
    assert result.returncode == 0, result.stderr.decode()
    lines = (started / "freq.txt").read_text().splitlines()
    assert len(lines) == 3000
    assert all(line.endswith(" 1") for line in lines)  # the end of sentence
    train(read_run_file(adapt(started, "written", {"name": "weights-file", "file": str(started / "freq.txt")}, 4)))
    train(read_run_file(adapt(started, "direct", {"name": "freq-exp", "decay": 0.5}, 4)))
    first, second = (read_log(started / name)[0] for name in ("written", "direct"))
    for figure in ("loss", "weight_mean", "weight_std", "weight_q95"):
        assert first[figure] == pytest.approx(second[figure], rel=1e-5)


def test_the_run_directory_has_every_setting(started):
    """Those of presets and defaults too: a run is told by them, whatever became of the defaults."""
    path = adapt(started, "settings", {"name": "bmi", "preset": "wmt19-zh-en"}, 1)
    train(read_run_file(path))
    kept = Run(started / "settings").config().stages[0].objective
    expected = {"slope": 0.1, "base": 1.0, "threshold": 0.4, "scale": 1.0, "clip": None, "shuffled": False}
    assert kept == {"name": "bmi", **expected}
    with pytest.raises(UserError, match=r"stages\.adapt\.objective\.slope: 0\.1, now 0\.2"):
        train(read_run_file(path, ["stages.adapt.objective.slope=0.2"]))
    train(read_run_file(path, ["stages.adapt.objective={name: bmi, slope: 0.1, base: 1.0}"]))


def test_weights_of_a_run_use_its_stages_settings(started):
    path = adapt(started, "strong", {"name": "cbmi", "scale_token": 0.0, "scale_sentence": 0.0}, 2)
    train(read_run_file(path))
    result = cbmi("weights", started / "strong", "--objective", "cbmi")
    assert set(result.stdout.decode().split()) == {"1"}
    result = cbmi("weights", started / "strong", "--objective", "cbmi", "scale_token=0.5")
    assert len(set(result.stdout.decode().split())) > 100
    given, spelt = (
        cbmi("weights", started / "strong", "--objective", "cbmi", *settings).stdout
        for settings in (["preset=wmt19-zh-en"], ["scale_token=0.1", "scale_sentence=0.3"])
    )
    assert given == spelt


def test_left_out_lines_have_a_line_of_weights(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    for side in ("src", "tgt"):
        lines = (tmp_path / f"train.{side}").read_text().splitlines()
        lines[7] = "" if side == "src" else lines[7]
        (tmp_path / f"train.{side}").write_text("".join(line + "\n" for line in lines))
    run = write_run(tmp_path, stages=[{"name": "ce", "steps": 1}])
    assert cbmi("train", run).returncode == 0
    lines = cbmi("weights", tmp_path / "run", "--objective", "bmi").stdout.decode().splitlines()
    assert len(lines) == 40
    assert lines[7] == "1"
    assert (tmp_path / "run" / "data" / "train" / "statistics" / "bmi").exists()


def test_objectives_without_weights_write_none(started):
    for arguments, expected in (
        (["prior-lm"], "'prior-lm' has no weights to write"),
        (["focall"], "unknown objective 'focall'"),
        (["cbmi", "name=5"], "the name of an objective is a word, not 5"),
        (["weights-file", "file=nosuch"], "nosuch: there is no such file of weights"),
    ):
        message = refused("weights", started / "start", "-o", started / "none.txt", "--objective", *arguments)
        assert expected in message
    assert not (started / "none.txt").exists()


def test_mini_batches_are_those_of_training(tmp_path):
    """Sentence weights are normalised over the whole step, whose parts are scored at a time."""
    write_task(tmp_path, train=120, valid=4)
    stages = [{"name": "ce", "language_model": "train", "steps": 2}]
    train(read_run_file(write_run(tmp_path, stages=stages, batch={"tokens": 100, "accumulate": 2})))
    model = Trained(tmp_path / "run")
    corpus = open_corpus(tmp_path / "run", "train")
    found = [np.concatenate(parts) for parts in mini_batches(model, corpus)]
    plan = EpochPlan(corpus.lengths(), 200, 1, 0)
    assert [sorted(pairs) for pairs in found] == [sorted(plan[n]) for n in range(len(plan))]
    assert sorted(np.concatenate(found)) == list(range(120))


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
        "objective 'cbmi' needs a language model: give this stage language_model: frozen, cached or joint",
    ),
    ({"name": "prior-lm"}, "off", "objective 'prior-lm' needs a language model"),
    ({"name": "fusion-prenorm"}, "off", "needs a language model: give this stage language_model: frozen"),
    ({"name": "fusion-postnorm"}, "joint", "wants a language model that rests: say language_model: frozen"),
    ({"name": "prior-tm", "interval": [0.0, 8.0]}, "off", "objective 'prior-tm' needs a language model"),
    ({"name": "weights-file", "file": "no-such-file"}, "off", "no-such-file: there is no such file"),
    ({"name": "self-paced", "samples": -5}, "off", "samples"),
    ({"name": "focal", "alpha": 1.1}, "off", "alpha"),
    ({"name": "prior-selection", "thresholds": [8.0, 0.0]}, "frozen", "should not be above"),
]


@pytest.mark.parametrize(("objective", "language_model", "expected"), REFUSED, ids=[r[0]["name"] for r in REFUSED])
def test_bad_stages_are_refused_before_anything_is_made(tmp_path, objective, language_model, expected):
    write_task(tmp_path, train=20, valid=4)
    first = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 2}
    second = {"name": "adapt", "objective": objective, "language_model": language_model, "steps": 2}
    with pytest.raises(UserError) as caught:
        train(read_run_file(write_run(tmp_path, stages=[first, second])))
    assert expected in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_prior_needs_a_translator_that_has_learnt(tmp_path):
    write_task(tmp_path, train=20, valid=4)
    stage = {"name": "only", "objective": "prior-tm", "steps": 2}
    with pytest.raises(UserError, match="'prior-tm' needs a translator to learn from: put a stage before it"):
        train(read_run_file(write_run(tmp_path, stages=[stage])))


def test_segmentation_cannot_change_on_the_fly(tmp_path):
    """BMI and files of weights go by the pieces of preparation; a setting that would vary them is none of ours."""
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
    stages = [{"name": "w", "objective": {"name": "weights-file", "file": str(tmp_path / "weights.txt")}, "steps": 2}]
    path = write_run(tmp_path, stages=stages)
    assert "line 1 has 1 numbers" in refused("train", path)
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
    assert [record["weight_mean"] for record in read_log(tmp_path / "run") if "weight_mean" in record] == [0.5, 0.5]


OWN = '''
from typing import ClassVar

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
    assert "unknown key 'bye' (did you mean 'by'?)" in refused("train", path, "stages.half.objective.bye=1")


BROKEN = {
    "Needy": ("needs: ClassVar = frozenset({'lmm'})", "'broken:Needy' needs 'lmm', which nobody provides"),
    "Sampler": ("needs: ClassVar = frozenset({'samples'})", "needs 'samples' but has no setting 'samples'"),
    "Idle": ("def term(self, chunk): ...", "has a method 'term' but does not need 'distribution'"),
    "Missing": ("pass", "'broken:Missing' is no class that derives from"),
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
    assert "'broken' cannot be imported: ZeroDivisionError" in refused("train", write_run(own, stages=[stage]))


def test_registered_objectives_are_listed(own):
    """Also beside one that is broken, and one that has the name of one of ours."""
    entries = own / "halves-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text() + "bad = no_module:Thing\nfocal = halves_module:Halves\n")
    listed = cbmi("objectives").stdout.decode()
    assert "halves: Every token counts half." in listed
    assert "bad: 'no_module' cannot be imported" in listed
    assert listed.count("\nfocal: ") == 1
