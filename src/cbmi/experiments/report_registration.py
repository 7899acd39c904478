"""What the report says of the registration: what was predicted, what was added, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from cbmi.experiments.contrasts import MEASURE_NAMES
from cbmi.experiments.records import JobResult
from cbmi.experiments.registration import Registration
from cbmi.experiments.settings import METRIC_NAMES, ExperimentSettings
from cbmi.progress import counted


def registration_text(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    registration: Registration | None,
) -> str:
    """A few sentences; empty: nothing is registered, or is to be."""
    if registration is None:
        if not experiment.register_:
            return ""
        return (
            "The experiment is to be registered, but there is no registration, so all figures "
            "here are exploratory."
        )
    sentences = [
        *_when(registration, results),
        f"Main outcome: {'; '.join(registration.primary())}.",
        "What goes beyond the registration is marked as exploratory.",
        *_added(experiment, registration),
        *_missing(experiment, results, registration),
    ]
    return " ".join(sentences)


def _when(registration: Registration, results: Sequence[JobResult]) -> list[str]:
    earlier = registration.begun_before(results)
    before = ", before the first system was trained," if registration.came_first(results) else ""
    sentences = [
        f"Registered on {registration.date}{before} with SHA-256 {registration.digest} "
        "(registration.yaml)."
    ]
    if earlier:
        sentences.append(f"But these had begun before: {', '.join(earlier)}.")
    if registration.known_before():
        known = ", ".join(registration.known_before())
        sentences.append(f"First stages that had begun by then: {known}.")
    return sentences


def _added(experiment: ExperimentSettings, registration: Registration) -> list[str]:
    added = [str(seed) for seed in experiment.seeds if not registration.has_seed(seed)]
    if not added:
        return []
    were = "Seed {} was" if len(added) == 1 else "Seeds {} were"
    return [
        f"{were.format(', '.join(added))} added afterwards, so all figures here are exploratory."
    ]


def _missing(
    experiment: ExperimentSettings, results: Sequence[JobResult], registration: Registration
) -> list[str]:
    sentences = []
    left_out = _left_out(experiment, results, registration)
    if left_out:
        sentences.append(f"Registered, but left out of this report: {'; '.join(left_out)}.")
    undone = registration.undone(results)
    if undone:
        runs = counted(len(list(registration.runs())), "registered run")
        sentences.append(
            f"{undone} of {runs} are not among the results, so the tests here are not those that "
            "were registered."
        )
    return sentences


def _left_out(
    experiment: ExperimentSettings, results: Sequence[JobResult], registration: Registration
) -> list[str]:
    texts = [f"seed {seed}" for seed in registration.seeds() if seed not in experiment.seeds]
    systems = experiment.expanded()
    for task, system in registration.compared():
        if task not in experiment.tasks:
            texts.append(f"task {task}")
        elif system not in systems:
            texts.append(f"{system} ({task})")
    for task, test_set, metric in registration.outcomes():
        scored = [set(result.scores) for result in results if result.task == task]
        if not scored or task not in experiment.tasks:
            continue
        reported = experiment.reported(set().union(*scored))
        if test_set not in reported or metric not in experiment.metrics(task):
            texts.append(f"{METRIC_NAMES[metric]} on {test_set} ({task})")
    for name, contrast in registration.contrasts().items():
        if name not in experiment.report.contrasts:
            texts.append(f"contrast {name}")
        for measure in contrast["measures"]:
            if measure in MEASURE_NAMES and measure not in experiment.report.measures:
                texts.append(f"measure {measure}")
    for test_set in registration.other_domains():
        if test_set not in experiment.report.other_domains:
            texts.append(f"other domain {test_set}")
    if not experiment.report.words and not registration.has_words(()):
        texts.append("recall of words")
    return list(dict.fromkeys(texts))  # each once
