"""The experiments of studies/ are understood: a typo there would cost hours of a GPU."""

from __future__ import annotations

import pytest
import yaml
from tasks import ROOT

from cbmi.config import RunSettings
from cbmi.experiments import registration
from cbmi.experiments.settings import read_experiment
from cbmi.objectives import build
from cbmi.objectives.registry import LANGUAGE_PAIRS
from cbmi.overrides import read_mapping, with_overrides
from cbmi.schema import check
from cbmi.training.checks import check_stages, complete_settings

FILES = [
    path
    for path in sorted((ROOT / "studies").glob("*.yaml"))
    if "systems" in yaml.safe_load(path.read_text())
]


def test_there_are_some():
    assert "out-of-domain.yaml" in [path.name for path in FILES]


def test_all_studies_are_listed():
    listed = (ROOT / "studies" / "README.md").read_text()
    studies = {path for path in (ROOT / "studies").iterdir() if path.suffix in (".py", ".yaml")}
    for path in studies:
        assert f"`{path.stem}`" in listed or f"`{path.name}`" in listed, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_is_understood(path):
    experiment = read_experiment(path, [])
    for name, task in experiment.tasks.items():
        values = read_mapping(task.run, "run file") | {"output": "-"}
        config = check(RunSettings, with_overrides(values, task.settings), name)
        sets = {*experiment.report.sets, *experiment.report.other_domains}
        assert sets <= set(config.data.test)
        assert task.preset is None or task.preset in LANGUAGE_PAIRS
        for label, system in experiment.expanded().items():
            build(system.objective, label)
            last = config.stages[-1].model_copy(
                update={"objective": system.objective, "language_model": system.language_model}
            )
            stages = (*config.stages[:-1], last)
            check_stages(complete_settings(config.model_copy(update={"stages": stages})))


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "docs" / "runs").glob("*/registration.yaml")),
    ids=lambda path: path.parent.name,
)
def test_a_published_registration_is_that_of_its_plan(path):
    published = read_mapping(path, "registration")
    hypotheses = published["hypotheses"]
    assert registration._digest(hypotheses) == published["sha256"]
    experiment = read_experiment(ROOT / "studies" / f"{path.parent.name}.yaml", [])
    assert hypotheses["seeds"] == list(experiment.seeds)
    assert hypotheses["baseline"] == experiment.baseline
    assert list(hypotheses["tasks"]) == list(experiment.tasks)
    contrasts = hypotheses.get("contrasts", {})
    assert {name: one["of"] for name, one in contrasts.items()} == experiment.report.contrasts
    assert all(one["sets"] for one in contrasts.values())
    for name, registered in hypotheses["tasks"].items():
        assert list(registered["systems"]) == list(experiment.expanded())
        assert list(registered["sets"]) == list(experiment.report.sets)
        assert registered["metrics"] == list(experiment.metrics(name))
        task = experiment.tasks[name]
        values = with_overrides(read_mapping(task.run, "run file"), task.settings)
        first, last = values["stages"]
        assert registered["run"]["stages"][0]["steps"] == first["steps"]
        for label, system in experiment.expanded().items():
            stage = registered["systems"][label]
            assert stage["steps"] == (system.steps or last["steps"])
            preset = {"preset": task.preset} if task.preset else {}
            settings = build(preset | system.objective, label).model_dump(mode="json")
            assert settings.items() <= stage["objective"].items()
