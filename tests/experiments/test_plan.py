"""Jobs and their order. What a run file leaves out is chosen once, for all jobs of a seed."""

from __future__ import annotations

import pytest
import yaml

from cbmi.experiments.plan import Plan
from cbmi.experiments.settings import read_experiment
from cbmi.yaml_text import dump_yaml

SYSTEMS = {
    "ce": {"objective": "ce"},
    "cbmi": {"objective": "cbmi"},
}


@pytest.fixture
def plan_of(task, experiment_file, tmp_path):
    """A function that plans a task whose run file leaves out what can be chosen."""

    def plan(systems: dict = SYSTEMS, **changes) -> Plan:
        values = yaml.safe_load((task / "run.yaml").read_text())
        for key in ("ema", "batch", "validate"):
            del values[key]
        values["model"] = "auto"
        values["data"]["vocabulary"] = {}
        values["optimizer"] = {"peak_lr": 1e-3}
        values["stages"][-1]["restart_optimizer"] = True
        run = tmp_path / "silent.yaml"
        run.write_text(yaml.safe_dump(values | changes))
        tasks = {"demo": {"run": str(run)}}
        return Plan(read_experiment(experiment_file(tasks=tasks, systems=systems), []))

    return plan


def test_shards_can_be_whole_seeds(task, experiment_file):
    tasks = {name: {"run": str(task / "run.yaml")} for name in ("one", "two")}
    plan = Plan(read_experiment(experiment_file(tasks=tasks), []))
    for number, seed in enumerate((1, 2)):
        ends = [job for job in plan.wanted((number, 2)) if job.system is not None]
        assert [(job.task, job.seed) for job in ends] == [("one", seed)] * 3 + [("two", seed)] * 3


def test_a_system_may_have_batches_of_its_own(task, experiment_file):
    """As a control beside `preset: public`, whose batches are made of groups."""
    systems = {
        "ce": {"objective": "ce"},
        "ce-groups": {"objective": "ce", "groups": 512},
        "public": {"objective": {"name": "cbmi", "preset": "public"}},
    }
    settings = ["batch.tokens=4096"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    path = experiment_file(systems=systems, tasks=tasks, seeds=[1], analyses=[])
    plan = Plan(read_experiment(path, []))
    groups = {}
    for (_, _, system), job in plan.of_system.items():
        groups[system] = [stage.groups for stage in plan.jobs[job].config.stages]
    assert groups == {"ce": [None, None], "ce-groups": [None, 512], "public": [None, 4096]}


def chosen(plan: Plan) -> dict[str, tuple]:
    """Of every job: what may be chosen."""
    found = {}
    for job in plan.jobs.values():
        config = job.config
        optimizer = config.optimizer
        found[job.id] = (
            config.model,
            config.data.vocabulary.size,
            config.batch.tokens,
            optimizer.warmup,
            optimizer.schedule,
            config.validate_.every,
            config.ema,
        )
    return found


def test_all_jobs_have_the_same(plan_of):
    found = chosen(plan_of())
    assert len(set(map(repr, found.values()))) == 1
    model, pieces, tokens, _, schedule, _, ema = found["demo-1-ce"]
    assert (model.preset, pieces, tokens) == ("small", 8000, 2048)
    assert (schedule, ema) == ("linear", 0.999)


def test_a_system_without_time_for_a_schedule_decides_for_all(plan_of):
    short = {"cbmi": {"objective": "cbmi", "steps": 2}}
    found = chosen(plan_of(SYSTEMS | short, optimizer={"warmup": 5}))
    assert {choice[4] for choice in found.values()} == {"inverse-sqrt"}
    without_warmup = {"cbmi": {"objective": "cbmi", "steps": 2, "restart_optimizer": False}}
    found = chosen(plan_of(SYSTEMS | without_warmup, optimizer={"warmup": 5}))
    assert {choice[4] for choice in found.values()} == {"linear"}


def test_what_has_begun_decides_for_what_has_not(plan_of):
    """As if an earlier version, with other defaults, had trained the shared stages of seed 1."""
    plan = plan_of()
    start = plan.jobs["demo-1-start"]
    start.run.path.mkdir(parents=True)
    earlier = start.config.plain()
    earlier["ema"] = 0.0
    earlier["optimizer"]["schedule"] = "inverse-sqrt"
    start.run.config_file.write_text(dump_yaml(earlier))
    found = chosen(plan_of())
    for job in ("demo-1-start", "demo-1-ce", "demo-1-cbmi", "demo-1-prior-accuracy"):
        assert found[job][4:] == ("inverse-sqrt", found[job][5], 0.0)
    assert found["demo-2-ce"][4] == "linear"
