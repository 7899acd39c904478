"""BLEU, chrF and TER by sacrebleu, with confidence intervals and paired significance tests."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, NamedTuple

from cbmi.errors import UserError, import_extra
from cbmi.evaluation import multi_bleu as moses
from cbmi.progress import counted

# Languages written without spaces, by all their codes of ISO 639, and sacrebleu's tokenizers.
CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu")
OTHER_UNSPACED = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur")
TOKENIZER_OF_LANGUAGE = dict.fromkeys(CHINESE, "zh") | dict.fromkeys(OTHER_UNSPACED, "char")
SPACED_TOKENIZER = "13a"  # sacrebleu's default: words between spaces

_seed_lock = threading.Lock()  # held while the environment has our SACREBLEU_SEED


@dataclass(frozen=True)
class MetricScore:
    """One metric of one system. What was not asked for, or does not apply, is None.

    `mean` ± `interval` is the 95% confidence interval by bootstrap. `difference` (this system minus
    the first) and `p_value` come from the paired bootstrap against the first system.
    """

    score: float
    mean: float | None = None
    interval: float | None = None
    difference: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class SystemScores:
    """The scores of one system: by metric name ("BLEU", "chrF2", "TER"), and tokenised BLEU."""

    name: str
    metrics: dict[str, MetricScore]
    multi_bleu: moses.MultiBleu | None = None  # None if it was not asked for

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metrics": {name: asdict(score) for name, score in self.metrics.items()},
            "multi_bleu": None if self.multi_bleu is None else self.multi_bleu.to_json(),
        }


@dataclass(frozen=True)
class EvaluationReport:
    """The systems in the order given, the first being the baseline; signatures by metric name."""

    systems: list[SystemScores]
    signatures: dict[str, str]
    lines: int
    bootstrap: int  # number of resamples
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers, ready for json.dump."""
        return {
            "systems": [system.to_json() for system in self.systems],
            "signatures": dict(self.signatures),
            "lines": self.lines,
            "bootstrap": self.bootstrap,
            "seed": self.seed,
        }


class _Scores(NamedTuple):
    by_system: dict[str, dict[str, MetricScore]]  # system → metric → score
    signatures: dict[str, str]  # metric → signature


def evaluate(
    references: Sequence[str] | Sequence[Sequence[str]],
    systems: Mapping[str, Sequence[str]],
    *,
    bootstrap: int = 1000,
    seed: int = 12345,
    language: str = "",
    multi_bleu: bool = False,
    tokenize: str | None = None,
    split_compounds: bool = False,
) -> EvaluationReport:
    """Score every system (name → output lines) against `references`, one reference per line.

    Several references of each line are several sequences of lines.
    `bootstrap` resamples give each score an interval and test each later system against the first;
    0 does neither. `language` decides how BLEU and TER split text: into characters if it is written
    without spaces. `multi_bleu` adds tokenised BLEU, for which `tokenize` names the language of the
    Moses tokenizer (None: the lines are tokenised already) and `split_compounds` splits at hyphens.
    """
    if not isinstance(systems, Mapping):
        raise TypeError("evaluate takes systems by name, as in {'mine': lines}")
    _check_settings(bootstrap, seed, multi_bleu, tokenize, split_compounds)
    several = reference_sets(references)
    for one in several:
        _check_lines(one, systems)
    with _sacrebleu_seed(seed):
        metrics = _metrics(several, language)
        if bootstrap and len(systems) > 1:
            scores = _paired_scores(metrics, systems, bootstrap)
        else:
            scores = _single_scores(metrics, systems, bootstrap)
    signatures = dict(scores.signatures)
    rows = []
    for name, lines in systems.items():
        tokenised = None
        if multi_bleu:
            tokenised = moses.multi_bleu(
                lines, *several, split_compounds=split_compounds, language=tokenize
            )
            signatures["multi-BLEU"] = tokenised.signature  # the same for every system
        rows.append(SystemScores(name, scores.by_system[name], tokenised))
    return EvaluationReport(rows, signatures, len(several[0]), bootstrap, seed)


def reference_sets(references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """One or several references of every line, as lists of lines."""
    if isinstance(references, str):
        raise TypeError("references should be a list of lines, or several such lists")
    plain = [one for one in references if isinstance(one, str)]
    if len(plain) == len(references):
        return [plain]
    sets = [list(one) for one in references if not isinstance(one, str)]
    if plain:
        raise TypeError("references should be a list of lines, or several such lists, not both")
    return sets


def bleu_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language code such as zh, zh-CN or de."""
    code = re.split("[-_]", language.lower())[0]
    return TOKENIZER_OF_LANGUAGE.get(code, SPACED_TOKENIZER)


def unspaced(language: str) -> bool:
    """Whether a language is written without spaces."""
    return bleu_tokenizer(language) != SPACED_TOKENIZER


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = SPACED_TOKENIZER
) -> float:
    """sacrebleu's BLEU of untokenised `hypotheses` against one reference each."""
    _check_lines(references, {"hypotheses": hypotheses})
    # force: do not warn about text that looks tokenised.
    metric = _bleu(tokenizer, force=True)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """sacrebleu's chrF2 of untokenised `hypotheses` against one reference each."""
    _check_lines(references, {"hypotheses": hypotheses})
    metric = sacrebleu_metrics().CHRF()
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def score_signatures(tokenizer: str = SPACED_TOKENIZER) -> dict[str, str]:
    """sacrebleu's signatures of what `corpus_bleu` and `corpus_chrf` compute."""
    signatures = {}
    for name, metric in (
        ("bleu", _bleu(tokenizer, force=True)),
        ("chrf", sacrebleu_metrics().CHRF()),
    ):
        metric.corpus_score(["a"], [["a"]])  # only then is the number of references known
        signatures[name] = str(metric.get_signature())
    return signatures


def _single_scores(
    metrics: Mapping[str, Any], systems: Mapping[str, Sequence[str]], bootstrap: int
) -> _Scores:
    """Scores without a test between systems."""
    by_system: dict[str, dict[str, MetricScore]] = {name: {} for name in systems}
    for metric_name, metric in metrics.items():
        for name, lines in systems.items():
            result = metric.corpus_score(list(lines), None, n_bootstrap=bootstrap)
            score = MetricScore(float(result.score))
            if bootstrap:
                # sacrebleu keeps the interval in private fields; its format() prints them.
                score = MetricScore(score.score, float(result._mean), float(result._ci))
            by_system[name][metric_name] = score
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    return _Scores(by_system, signatures)


def _paired_scores(
    metrics: dict[str, Any], systems: Mapping[str, Sequence[str]], bootstrap: int
) -> _Scores:
    """Scores, with each later system tested against the first.

    The test draws the resamples of the intervals, with the same seed: its intervals are those of an
    evaluation of one system.
    """
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = []
    for name, lines in systems.items():
        named.append((name, list(lines)))
    test = PairedTest(named, metrics, None, test_type="bs", n_samples=bootstrap, n_jobs=1)
    signatures, results = test()
    by_system: dict[str, dict[str, MetricScore]] = {}
    for row, name in enumerate(systems):
        by_system[name] = {}
        for metric in metrics:
            baseline = results[metric][0]
            by_system[name][metric] = _tested(results[metric][row], baseline)
    return _Scores(by_system, {metric: str(text) for metric, text in signatures.items()})


def _tested(result: Any, baseline: Any) -> MetricScore:
    """sacrebleu's result of one system; `baseline` is its result of the first system."""
    score = float(result.score)
    mean = float(result.mean)
    interval = float(result.ci)
    if result is baseline:
        return MetricScore(score, mean, interval)
    difference = float(result.score - baseline.score)
    # sacrebleu counts the resamples strictly above the observed difference. A system that equals
    # the first one has none, and would get the smallest p-value there is. But any difference is at
    # least 0, so p is 1.
    p_value = float(result.p_value) if difference else 1.0
    return MetricScore(score, mean, interval, difference, p_value)


def _metrics(references: list[list[str]], language: str) -> dict[str, Any]:
    """sacrebleu's metrics by the names of their scores; they analyse the references once."""
    given = references
    return {
        "BLEU": _bleu(bleu_tokenizer(language), references=given),
        "chrF2": sacrebleu_metrics().CHRF(references=given),
        "TER": ter(language, references=given),
    }


def ter(language: str, **settings: Any) -> Any:
    """sacrebleu's TER, over characters if the language is written without spaces."""
    characters = unspaced(language)
    return sacrebleu_metrics().TER(normalized=characters, asian_support=characters, **settings)


def _bleu(tokenizer: str, **settings: Any) -> Any:
    """sacrebleu's BLEU with the named tokenizer."""
    bleu = sacrebleu_metrics().BLEU
    if tokenizer not in bleu.TOKENIZERS:
        known = ", ".join(bleu.TOKENIZERS)
        raise UserError(f"There is no BLEU tokenizer {tokenizer!r}; choose one of {known}.")
    return bleu(tokenize=tokenizer, **settings)


def sacrebleu_metrics() -> ModuleType:
    """The module sacrebleu.metrics, which only an extra installs."""
    return import_extra("sacrebleu.metrics", "Evaluation", "eval")


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed where sacrebleu reads it, the environment, and restore what was there.

    The environment belongs to the whole process: one thread at a time is in the block.
    """
    with _seed_lock:
        before = os.environ.get("SACREBLEU_SEED")
        os.environ["SACREBLEU_SEED"] = str(seed)
        try:
            yield
        finally:
            if before is None:
                del os.environ["SACREBLEU_SEED"]
            else:
                os.environ["SACREBLEU_SEED"] = before


def _check_settings(
    bootstrap: int, seed: int, multi_bleu: bool, tokenize: str | None, split_compounds: bool
) -> None:
    """Refuse settings that would do nothing, or that sacrebleu would silently misunderstand."""
    if bootstrap < 0 or bootstrap == 1:
        raise UserError(
            f"bootstrap is {bootstrap}; give the number of resamples (such as 1000) or 0 for none."
        )
    if seed < 1:
        raise UserError(f"seed is {seed}; give 1 or more (sacrebleu takes 0 for no seed).")
    if (tokenize is not None or split_compounds) and not multi_bleu:
        raise UserError(
            "tokenize and split_compounds apply to multi-BLEU only; turn on multi_bleu as well."
        )


def _check_lines(references: Sequence[str], systems: Mapping[str, Sequence[str]]) -> None:
    """Refuse empty input, and a system whose lines cannot be paired with the references."""
    if not systems:
        raise UserError("There is no system to evaluate; name at least one file of translations.")
    if not references:
        raise UserError("The references are empty; give a file with one reference per line.")
    for name, lines in systems.items():
        if len(lines) != len(references):
            raise UserError(
                f"System {name!r} has {counted(len(lines), 'line')} but the references have "
                f"{len(references)}; give one line for every reference."
            )
