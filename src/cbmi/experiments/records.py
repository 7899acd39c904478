"""What a job has given and how two systems compare: the lines of result.json and results.jsonl.

`to_json` and `from_json` are the only places that know the keys on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from cbmi.evaluation.paired_t import FEWEST_SEEDS, SeedTest
from cbmi.evaluation.robustness import Robustness
from cbmi.inspection.prior_accuracy import PriorAccuracy

Scores = dict[str, dict[str, float]]  # by test set, then by metric
DAY = len("2026-11-16")  # of a moment


def moment_now() -> str:
    """In UTC, such as 2026-11-16T09:30:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# Of the values that reports compute with: results travel between machines.
KINDS: dict[str, TypeAdapter[Any]] = {
    "job": TypeAdapter(str),
    "task": TypeAdapter(str),
    "seed": TypeAdapter(int),
    "system": TypeAdapter(str | None),
    "scores": TypeAdapter(Scores),
    "steps": TypeAdapter(int | None),
    "job_seconds": TypeAdapter(float | None),
    "begun": TypeAdapter(str | None),
    "finished": TypeAdapter(str | None),
    "files": TypeAdapter(dict[str, list[str]]),
}


class JobKind(StrEnum):
    CORPUS = "corpus"  # vocabulary and encoded corpus
    START = "start"  # the stages that all systems share
    SYSTEM = "system"  # the last stage, each system's own
    PRIOR_ACCURACY = "prior-accuracy"  # an analysis of the shared stages' run


@dataclass(frozen=True)
class ValidationPoint:
    """One validation of a run."""

    step: int
    loss: float  # negative log-likelihood per token
    bleu: float | None = None  # None: nothing was translated (validate.beam is 0)
    language_model_perplexity: float | None = None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"step": self.step, "valid_loss": self.loss}
        if self.bleu is not None:
            values["valid_bleu"] = self.bleu
        if self.language_model_perplexity is not None:
            values["valid_lm_ppl"] = self.language_model_perplexity
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ValidationPoint:
        """From a result or from a line of a run's log, which has the same keys."""
        return cls(
            step=values["step"],
            loss=values["valid_loss"],
            bleu=values.get("valid_bleu"),
            language_model_perplexity=values.get("valid_lm_ppl"),
        )


@dataclass(frozen=True)
class PreparationCost:
    """Of what an objective wanted before its first step: statistics of the corpus, caches."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class JobResult:
    """What a job has given. What does not apply to the kind of job has its default."""

    job: str
    kind: JobKind
    task: str
    seed: int
    system: str | None = None
    # Of a run:
    scores: Scores = field(default_factory=dict)
    validations: tuple[ValidationPoint, ...] = ()
    steps: int | None = None
    training_seconds: float | None = None  # in steps, without validation
    tokens_per_second: int | None = None  # median of the log's lines
    loss: float | None = None  # the last in the log; None: nothing was logged
    weights: dict[str, float] = field(default_factory=dict)  # their moments, last in the log
    parameters: dict[str, int] = field(default_factory=dict)  # by network
    preparation: PreparationCost | None = None
    # Of an analysis:
    accuracy: PriorAccuracy | None = None
    # Of every job; results of older versions may lack some of it.
    job_seconds: float | None = None  # with start-up and translation
    device: str | None = None
    torch: str | None = None
    cbmi: str | None = None
    commit: str | None = None  # None: the package does not lie in a git checkout
    # Moments, such as 2026-11-16T09:30:00Z; of older versions, the day that it finished.
    begun: str | None = None
    finished: str | None = None
    files: dict[str, list[str]] = field(default_factory=dict)  # digests of what it read, by role
    # Digest of the weights after the shared stages, from which the systems of a seed continue.
    shared_weights: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of the run, as plain YAML types

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "job": self.job,
            "kind": self.kind.value,
            "task": self.task,
            "seed": self.seed,
        }
        if self.system is not None:
            values["system"] = self.system
        if self.kind is JobKind.PRIOR_ACCURACY:
            values["accuracy"] = self.accuracy.to_json() if self.accuracy else None
        else:
            values.update(self._run_to_json())
        values["job_seconds"] = self.job_seconds
        values["device"] = self.device
        values["torch"] = self.torch
        values["cbmi"] = self.cbmi
        values["commit"] = self.commit
        values["begun"] = self.begun
        values["finished"] = self.finished
        values["files"] = self.files
        values["shared_weights"] = self.shared_weights
        values["settings"] = self.settings
        return values

    def _run_to_json(self) -> dict[str, Any]:
        return {
            "scores": self.scores,
            "validations": [point.to_json() for point in self.validations],
            "steps": self.steps,
            "training_seconds": self.training_seconds,
            "tokens_per_second": self.tokens_per_second,
            "loss": self.loss,
            "weights": self.weights,
            "parameters": self.parameters,
            "preparation": asdict(self.preparation) if self.preparation else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobResult:
        """Raises KeyError, TypeError or ValueError for what is not a result."""
        for key, kind in KINDS.items():
            if key in values:
                kind.validate_python(values[key], strict=True)
        if not all("bleu" in scores for scores in values.get("scores", {}).values()):
            raise ValueError("a test set has no BLEU")
        preparation = values.get("preparation")
        accuracy = values.get("accuracy")
        points = [ValidationPoint.from_json(point) for point in values.get("validations", ())]
        return cls(
            job=values["job"],
            kind=JobKind(values["kind"]),
            task=values["task"],
            seed=values["seed"],
            system=values.get("system"),
            scores=values.get("scores", {}),
            validations=tuple(points),
            steps=values.get("steps"),
            training_seconds=values.get("training_seconds"),
            tokens_per_second=values.get("tokens_per_second"),
            loss=values.get("loss"),
            weights=values.get("weights", {}),
            parameters=values.get("parameters", {}),
            preparation=PreparationCost(**preparation) if preparation else None,
            accuracy=PriorAccuracy.from_json(accuracy) if accuracy else None,
            job_seconds=values.get("job_seconds"),
            device=values.get("device"),
            torch=values.get("torch"),
            cbmi=values.get("cbmi"),
            commit=values.get("commit"),
            begun=values.get("begun"),
            finished=values.get("finished"),
            files=values.get("files", {}),
            shared_weights=values.get("shared_weights"),
            settings=values["settings"],
        )


@dataclass(frozen=True)
class RobustnessRecord:
    """How a run does on a test set of another domain."""

    task: str
    set: str
    system: str
    seed: int
    found: Robustness

    def columns(self) -> dict[str, Any]:
        """A row of other-domains.csv."""
        run = {"task": self.task, "set": self.set, "system": self.system, "seed": self.seed}
        return run | asdict(self.found)


@dataclass(frozen=True)
class SystemComparison:
    """A system against another on one test set, over the sentences and over the seeds."""

    task: str
    set: str
    system: str
    against: str
    seed: int | None  # None: over all seeds that both systems have
    seeds: tuple[int, ...]  # that it is of
    metric: str
    difference: float  # system minus the other, mean over the seeds
    p: float  # of the paired bootstrap over the sentences
    over_seeds: SeedTest | None = None  # the paired t-test; None: there is one seed
    holm_p: float | None = None  # of that test, corrected for the number of systems
    tests: int = 1  # that number

    def family(self) -> tuple[str, str, str, str]:
        """What the systems that are tested together have in common."""
        return (self.task, self.set, self.metric, self.against)

    def level(self) -> float:
        """The larger p-value of both tests; 1 where there are too few seeds to tell."""
        if self.holm_p is None or self.over_seeds is None or self.over_seeds.seeds < FEWEST_SEEDS:
            return 1.0
        return max(self.p, self.holm_p)

    def columns(self) -> dict[str, Any]:
        """A row of comparisons.csv."""
        test = self.over_seeds
        return {
            "task": self.task,
            "set": self.set,
            "system": self.system,
            "against": self.against,
            "seed": self.seed,
            "metric": self.metric,
            "difference": self.difference,
            "p": self.p,
            "standard_error": test.error if test else None,
            "p_over_seeds": test.p if test else None,
            "p_over_seeds_holm": self.holm_p,
            "detectable": test.detectable(self.tests) if test and test.error else None,
        }

    def to_json(self) -> dict[str, Any]:
        """A line of results.jsonl."""
        return {"kind": "comparison", **self.columns()}


@dataclass(frozen=True)
class ContrastRecord:
    """A contrast of the report on one test set, by one metric or measure."""

    contrast: str
    set: str
    measure: str
    by_seed: dict[int, float]
    over_seeds: SeedTest | None  # the t-test; None: there is one seed
    registered: bool  # or there is no registration
    holm_p: float | None = None  # of that test, corrected for the number of contrasts
    tests: int = 1  # that number

    @property
    def mean(self) -> float:
        return sum(self.by_seed.values()) / len(self.by_seed)

    def columns(self) -> dict[str, Any]:
        """A row of contrasts.csv."""
        test = self.over_seeds
        return {
            "contrast": self.contrast,
            "set": self.set,
            "measure": self.measure,
            "mean": self.mean,
            "standard_error": test.error if test else None,
            "p_over_seeds": test.p if test else None,
            "p_over_seeds_holm": self.holm_p,
            "detectable": test.detectable(self.tests) if test and test.error else None,
            "seeds": " ".join(f"{seed}:{value:.4f}" for seed, value in self.by_seed.items()),
        }

    def to_json(self) -> dict[str, Any]:
        """A line of results.jsonl."""
        return {"kind": "contrast", **self.columns()}
