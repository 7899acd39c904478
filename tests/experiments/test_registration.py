"""A registration: written before the first result, held to afterwards, shown in the report."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import yaml
from tasks import cbmi, refused

from cbmi.errors import UserError
from cbmi.evaluation.robustness import Robustness
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import JobKind, JobResult, RobustnessRecord
from cbmi.experiments.registration import (
    Registration,
    _digest,
    read_registration,
    register,
    registration_file,
)
from cbmi.experiments.report_domains import domain_rows, domain_titles
from cbmi.experiments.settings import read_experiment
from cbmi.experiments.table import results_tables
from cbmi.overrides import read_mapping
from cbmi.yaml_text import dump_yaml


@pytest.fixture
def plan_of(experiment_file):
    def make(**changes) -> Plan:
        return Plan(read_experiment(experiment_file(register=True, **changes), []))

    return make


def test_it_names_what_is_tested_and_has_a_hash(plan_of, capsys):
    plan = plan_of()
    assert read_registration(plan) is None
    registration = register(plan)
    assert registration == read_registration(plan) == register(plan)
    assert registration.primary() == ["chrF on test (demo)"]
    task = registration.hypotheses["tasks"]["demo"]
    assert list(task["systems"]) == ["ce", "freq", "cbmi"]
    assert task["systems"]["cbmi"]["objective"]["scale_token"] == 0.2
    assert task["systems"]["cbmi"]["objective"]["scale_sentence"] == 0.3  # a default, spelt out
    assert len(task["sets"]["test"][0]) == 32
    assert registration.hypotheses["seeds"] == [1, 2]
    assert "output" not in task["run"]
    assert len(list(registration.runs())) == 6
    said = capsys.readouterr().err
    assert said.count("with fewer than 3 seeds, no difference can count") == 1


def test_another_order_or_place_of_files_is_the_same_registration(plan_of, tmp_path):
    first = register(plan_of())
    second = register(plan_of(output=str(tmp_path / "elsewhere")))
    assert first.digest == second.digest


def test_what_was_registered_may_not_change(plan_of, systems, tmp_path):
    register(plan_of())
    stronger = systems | {"cbmi": {"objective": {"name": "cbmi", "scale_token": 0.4}}}
    with pytest.raises(UserError, match=r"scale_token: 0.2, now 0.4\): bring it back, or give"):
        register(plan_of(systems=stronger))
    run = {"run": str(plan_of().experiment.tasks["demo"].run), "settings": ["label_smoothing=0.2"]}
    with pytest.raises(UserError, match=r"label_smoothing: 0\.1, now 0\.2"):
        register(plan_of(tasks={"demo": run}))
    with pytest.raises(UserError, match=r"report\.baseline: ce, now freq"):
        register(plan_of(report={"metric": "chrf", "baseline": "freq"}))
    with pytest.raises(UserError, match="main outcome: chrF on test, now BLEU on test"):
        register(plan_of(report={"metric": ["bleu", "chrf"]}))
    added = systems | {"more": {"objective": "focal"}}
    assert not register(plan_of(systems=added)).has_system("demo", "more")


def test_a_registration_that_was_edited_is_refused(plan_of):
    plan = plan_of()
    register(plan)
    file = registration_file(plan)
    file.write_text(file.read_text().replace("scale_token: 0.2", "scale_token: 0.4"))
    with pytest.raises(UserError, match="was changed after it was written"):
        register(plan)
    file.write_text("title: something else\n")
    with pytest.raises(UserError, match="this is not a registration"):
        register(plan)


@pytest.mark.slow
def test_there_is_something_to_register(task, plan_of):
    """Analyses of the first stages compare no systems."""
    with pytest.raises(UserError, match="register: there is no system to be compared"):
        register(plan_of(systems={}))


def test_it_comes_before_the_first_result(own, experiment_file):
    path = experiment_file(output=str(own), register=True)
    message = refused("experiment", path, "--devices", "cpu")
    assert "demo-1-ce has begun already, and a registration comes before the first" in message
    assert not (own / "registration.yaml").exists()


@pytest.mark.slow
def test_first_stages_that_were_known_are_named(own, plan_of, tmp_path):
    """Their scores on the test sets could be seen."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name in ("demo-1-start", "demo-2-start"):
        shutil.copytree(own / "jobs" / name, jobs / name)
    plan = plan_of(jobs=str(jobs))
    registration = register(plan)
    assert registration.known_before() == ["demo-1-start", "demo-2-start"]
    assert read_registration(plan) == registration


@pytest.mark.slow
def test_the_report_says_what_it_leaves_out(own, experiment_file, plan_of):
    shutil.rmtree(own / "report", ignore_errors=True)
    asked = experiment_file(output=str(own), register=True)
    assert cbmi("experiment", asked, "--report").returncode == 0
    text = (own / "report" / "report.md").read_text()
    assert "there is no registration, so all figures here are exploratory" in text
    plan = plan_of(report={"metric": ["chrf", "bleu"]})
    register(plan)
    shutil.copy(registration_file(plan), own / "registration.yaml")
    for metric, left_out in ((["chrf", "bleu"], ""), ("chrf", "BLEU on test (demo)")):
        path = experiment_file(output=str(own), report={"metric": metric})
        assert cbmi("experiment", path, "--report").returncode == 0
        text = (own / "report" / "report.md").read_text()
        said = f"Registered, but left out of this report: {left_out}."
        assert (said in text) == bool(left_out)


@pytest.mark.slow
def test_the_report_marks_what_goes_beyond_it(own, experiment_file, plan_of, systems):
    fewer = {name: systems[name] for name in ("ce", "cbmi")}
    plan = plan_of(systems=fewer, seeds=[1, 3])
    registration = register(plan)
    shutil.copy(registration_file(plan), own / "registration.yaml")
    path = experiment_file(output=str(own), report={"metric": ["chrf", "bleu"]})
    result = cbmi("experiment", path, "--report")
    assert result.returncode == 0, result.stderr.decode()
    for name in ("report.md", "report.html"):
        text = (own / "report" / name).read_text()
        assert registration.digest in text
        assert "Main outcome: chrF on test (demo)." in text
        assert "Seed 2 was added afterwards, so all figures here are exploratory." in text
        assert "+ Freq (exploratory)" in text
        assert "Transformer (exploratory)" not in text
        assert "Demo En→De (exploratory)" in text  # by BLEU, which was not registered
        assert "demo, seed 3: ce (registered)" in text
        assert "Registered, but left out of this report: seed 3." in text
        assert "2 of 4 registered runs are not among the results" in text
    markdown = (own / "report" / "report.md").read_text()
    assert "| + Freq (exploratory) | Transformer | " in markdown
    comparisons = (own / "report" / "comparisons.csv").read_text().splitlines()
    names = comparisons[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in comparisons[1:]]
    assert {(row["system"], row["metric"], row["registered"]) for row in rows} == {
        ("freq", "chrf", "no"),
        ("freq", "bleu", "no"),
        ("cbmi", "chrf", "yes"),
        ("cbmi", "chrf", "no"),
        ("cbmi", "bleu", "no"),
    }
    registered = [row["seed"] for row in rows if row["registered"] == "yes"]
    assert registered == ["1"]  # neither seed 2 nor the mean over both was registered


def test_a_main_outcome_cannot_change_places(plan_of, task):
    """The hash does not see the order of test sets, but it sees the main outcome."""
    files = yaml.safe_load((task / "run.yaml").read_text())["data"]["valid"]
    run = {"run": str(task / "run.yaml"), "settings": [f"data.test.other=[{','.join(files)}]"]}

    def plan(*sets: str) -> Plan:
        return plan_of(tasks={"demo": run}, report={"metric": "chrf", "sets": list(sets)})

    assert register(plan("test", "other")).primary() == ["chrF on test (demo)"]
    file = registration_file(plan("test", "other"))
    values = read_mapping(file, "registration")
    registered = values["hypotheses"]["tasks"]["demo"]
    registered["sets"] = dict(reversed(registered["sets"].items()))
    file.write_text(dump_yaml(values))
    with pytest.raises(UserError, match="main outcome: chrF on test, now chrF on other"):
        register(plan("other", "test"))
    values["hypotheses"]["main outcomes"]["demo"] = "chrF on other"
    file.write_text(dump_yaml(values))
    with pytest.raises(UserError, match="was changed after it was written"):
        register(plan("other", "test"))


def test_older_registrations_do_not_name_main_outcomes(plan_of):
    registration = register(plan_of())
    older = {key: value for key, value in registration.hypotheses.items() if "main" not in key}
    assert Registration("2026-01-01", "", older).primary() == ["chrF on test (demo)"]


def test_results_that_are_older_are_named(plan_of):
    registration = register(plan_of())
    results = []
    for job, kind, system in (
        ("demo-1-start", JobKind.START, None),
        ("demo-1-cbmi", JobKind.SYSTEM, "cbmi"),
        ("demo-1-more", JobKind.SYSTEM, "more"),  # not registered
    ):
        result = JobResult(job, kind, "demo", 1, system)
        results += [replace(result, finished="2026-01-01"), replace(result, finished="9999-01-01")]
    assert registration.begun_before(results) == ["demo-1-start", "demo-1-cbmi"]
    assert registration.begun_before(results[1::2]) == []


def test_what_came_first_is_told_by_the_second(plan_of):
    """Days alone do not tell, whatever time zone they are of."""
    registration = replace(register(plan_of()), date="2026-01-02T10:00:00Z")
    result = JobResult("demo-1-cbmi", JobKind.SYSTEM, "demo", 1, "cbmi")
    before = replace(result, begun="2026-01-02T09:59:59Z", finished="2026-01-02T11:00:00Z")
    after = replace(result, begun="2026-01-02T10:00:01Z", finished="2026-01-02T11:00:00Z")
    that_day = replace(result, finished="2026-01-02")
    assert registration.begun_before([before, after, that_day]) == ["demo-1-cbmi"]
    assert registration.begun_before([after, that_day]) == []
    assert registration.came_first([after])
    assert not registration.came_first([after, that_day])
    assert not registration.came_first([before])
    assert not replace(registration, date="2026-01-02").came_first([after])


def test_a_task_that_was_added_is_exploratory(plan_of, task, tmp_path):
    """Its columns are marked, and not the systems that were registered for the others."""
    registration = register(plan_of())
    tasks = {name: {"run": str(task / "run.yaml")} for name in ("demo", "added")}
    experiment = plan_of(tasks=tasks, output=str(tmp_path / "other")).experiment
    results = []
    for name in tasks:
        scores = {"test": {"chrf": 50.0, "bleu": 30.0}}
        result = JobResult(f"{name}-1-ce", JobKind.SYSTEM, name, 1, "ce", scores=scores)
        results.append(result)
    (table,) = results_tables(experiment, results, [], registration)
    assert table.columns == ["demo", "added (exploratory)"]
    assert [row.label for row in table.rows] == ["Transformer"]


def test_other_domains_that_were_added_are_exploratory(plan_of, task):
    report = {"metric": "chrf", "other_domains": ["test"]}
    registration = register(plan_of(report=report))
    experiment = plan_of(report=report).experiment
    found = Robustness(0.1, 1.0, 0.0, None, None)
    records = [RobustnessRecord("demo", name, "ce", 1, found) for name in ("test", "added")]
    rows = domain_rows(experiment, records, registration)
    assert [row.on for row in rows] == ["Demo En→De, test", "Demo En→De, added (exploratory)"]
    assert [row.system for row in rows] == ["Transformer", "Transformer"]
    words = plan_of(report=report | {"words": ["the"]}).experiment
    assert domain_titles(words, registration)[-1] == "recall, the (exploratory)"
    assert domain_titles(words)[-1] == "recall, the"
    older = Registration("2026-01-01", "", {"tasks": registration.hypotheses["tasks"]})
    assert domain_rows(experiment, records, older)[0].on.endswith("(exploratory)")


def test_older_registrations_know_fewer_files(plan_of):
    """They have no digests of start weights and of files of weights."""
    plan = plan_of()
    register(plan)
    path = registration_file(plan)
    values = read_mapping(path, "registration")
    task = values["hypotheses"]["tasks"]["demo"]
    task["run"]["files"].pop("valid")
    for system in task["systems"].values():
        system.pop("files", None)
    older = dict(values["hypotheses"])
    for key in ("contrasts", "other domains", "resamples"):
        del older[key]
    path.write_text(
        dump_yaml({"registered": "2026-01-01", "sha256": _digest(older), "hypotheses": older})
    )
    assert read_registration(plan).date == "2026-01-01"


@pytest.mark.slow
def test_an_experiment_registers_itself(experiment_file, started, tmp_path):
    path = experiment_file(
        register=True, seeds=[1], systems={"ce": {"objective": "ce"}}, analyses=[]
    )
    process = started(path)
    said = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, said
    assert "Registered on " in said
    assert said.index("Registered on ") < said.index("demo-1-ce: ")
    assert (tmp_path / "experiment" / "registration.yaml").exists()
    assert "Registered on" in (tmp_path / "experiment" / "report" / "report.md").read_text()
