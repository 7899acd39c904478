"""BLEU, chrF and TER by sacrebleu, with confidence intervals and paired significance tests."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cbmi.errors import UserError
from cbmi.evaluation import multi_bleu as moses

# Languages written without spaces, by all their codes of ISO 639.
UNSPACED = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu"), "zh"),
    **dict.fromkeys(("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur"), "char"),
}


@dataclass(frozen=True)
class MetricScore:
    """One metric of one system; what was not asked for, or does not apply, is None.

    `mean` ± `interval` is the 95% confidence interval by bootstrap; `difference` (this system minus the
    first) and `p_value` come from the paired bootstrap against the first system.
    """

    score: float
    mean: float | None = None
    interval: float | None = None
    difference: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class System:
    """The scores of one system by metric name ("BLEU", "chrF2", "TER"), and its tokenised BLEU if asked."""

    name: str
    metrics: dict[str, MetricScore]
    multi_bleu: moses.MultiBleu | None = None


@dataclass(frozen=True)
class Report:
    """The systems in the order given, the first being the baseline; signatures by metric name."""

    systems: list[System]
    signatures: dict[str, str]
    lines: int
    bootstrap: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers, ready for json.dump."""
        report = dataclasses.asdict(self)
        for system in report["systems"]:
            if system["multi_bleu"] is not None:
                system["multi_bleu"]["precisions"] = list(system["multi_bleu"]["precisions"])
        return report


def evaluate(
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    *,
    bootstrap: int = 1000,
    seed: int = 12345,
    language: str = "",
    multi_bleu: bool = False,
    tokenize: str | None = None,
    split_compounds: bool = False,
) -> Report:
    """Score every system (name → output lines) against `references`, one reference per line.

    `bootstrap` resamples give each score an interval and test each later system against the first; 0 does
    neither. `language` decides how BLEU and TER cut text: into characters where it has no spaces. `multi_bleu`
    adds tokenised BLEU, for which `tokenize` names the language of the Moses tokenizer (None: the lines are
    tokenised already) and `split_compounds` splits at hyphens.
    """
    _check_settings(bootstrap, seed, multi_bleu, tokenize, split_compounds)
    _check_lines(references, systems)
    with _sacrebleu_seed(seed):
        metrics = _metrics(references, language)
        if bootstrap and len(systems) > 1:
            scores, signatures = _paired_scores(metrics, systems, bootstrap)
        else:
            scores, signatures = _single_scores(metrics, systems, bootstrap)
    rows = []
    for name, lines in systems.items():
        tokenised = moses.multi_bleu(lines, references, split_compounds, tokenize) if multi_bleu else None
        rows.append(System(name, scores[name], tokenised))
    if multi_bleu:
        signatures["multi-BLEU"] = rows[0].multi_bleu.signature
    return Report(rows, signatures, len(references), bootstrap, seed)


def bleu_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language (zh, zh-CN, …): 13a finds words between spaces, where there are any."""
    return UNSPACED.get(re.split("[-_]", language.lower())[0], "13a")


def unspaced(language: str) -> bool:
    return bleu_tokenizer(language) != "13a"


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> float:
    """sacrebleu's BLEU of untokenised `hypotheses` against one reference each."""
    _check_lines(references, {"hypotheses": hypotheses})
    return float(_bleu(tokenizer, force=True).corpus_score(list(hypotheses), [list(references)]).score)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """sacrebleu's chrF2 of untokenised `hypotheses` against one reference each."""
    _check_lines(references, {"hypotheses": hypotheses})
    return float(sacrebleu_metrics().CHRF().corpus_score(list(hypotheses), [list(references)]).score)


def _single_scores(metrics: dict, systems: Mapping[str, Sequence[str]], bootstrap: int) -> tuple[dict, dict]:
    """Scores by system and metric, and signatures by metric, without a test between systems."""
    scores: dict[str, dict[str, MetricScore]] = {name: {} for name in systems}
    for metric_name, metric in metrics.items():
        for name, lines in systems.items():
            result = metric.corpus_score(list(lines), None, n_bootstrap=bootstrap)
            # sacrebleu keeps the interval in private fields only; they are what its format() prints.
            interval = (float(result._mean), float(result._ci)) if bootstrap else (None, None)
            scores[name][metric_name] = MetricScore(float(result.score), *interval)
    return scores, {name: str(metric.get_signature()) for name, metric in metrics.items()}


def _paired_scores(metrics: dict, systems: Mapping[str, Sequence[str]], bootstrap: int) -> tuple[dict, dict]:
    """Scores by system and metric, and signatures by metric, each later system tested against the first.

    The test resamples with the seed the intervals use, so its intervals are those of a single evaluation.
    """
    from sacrebleu.significance import PairedTest

    named = [(name, list(lines)) for name, lines in systems.items()]
    test = PairedTest(named, metrics, None, test_type="bs", n_samples=bootstrap, n_jobs=1)
    signatures, results = test()
    scores = {
        name: {metric: _tested(results[metric][row], results[metric][0]) for metric in metrics}
        for row, name in enumerate(systems)
    }
    return scores, {metric: str(signature) for metric, signature in signatures.items()}


def _tested(result: Any, baseline: Any) -> MetricScore:
    """sacrebleu's result of one system as a MetricScore; `baseline` is the first system's result."""
    interval = (float(result.score), float(result.mean), float(result.ci))
    if result is baseline:
        return MetricScore(*interval)
    difference = float(result.score - baseline.score)
    # sacrebleu counts resamples strictly above the observed difference, which turns no difference at all
    # (a system against itself) into the smallest p-value there is; any difference is at least zero: p = 1.
    p_value = float(result.p_value) if difference else 1.0
    return MetricScore(*interval, difference, p_value)


def _metrics(references: Sequence[str], language: str) -> dict:
    """sacrebleu's metrics by the names it gives their scores, the references analysed once for all."""
    given = [list(references)]
    return {
        "BLEU": _bleu(bleu_tokenizer(language), references=given),
        "chrF2": sacrebleu_metrics().CHRF(references=given),
        "TER": ter(language, references=given),
    }


def ter(language: str, **settings: Any) -> Any:
    """sacrebleu's TER, over characters where a language has no spaces."""
    characters = unspaced(language)
    return sacrebleu_metrics().TER(normalized=characters, asian_support=characters, **settings)


def _bleu(tokenizer: str, **settings: Any) -> Any:
    """sacrebleu's BLEU with the named tokenizer."""
    bleu = sacrebleu_metrics().BLEU
    if tokenizer not in bleu.TOKENIZERS:
        raise UserError(f"There is no BLEU tokenizer {tokenizer!r}; choose one of {', '.join(bleu.TOKENIZERS)}.")
    return bleu(tokenize=tokenizer, **settings)


def sacrebleu_metrics() -> ModuleType:
    """The module sacrebleu.metrics, which only the extra installs."""
    try:
        import sacrebleu.metrics
    except ImportError:
        raise UserError("Evaluation needs the extra 'eval': pip install 'cbmi[eval]'.") from None
    return sacrebleu.metrics


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed where sacrebleu reads it, the environment, and put back what was there."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def _check_settings(bootstrap: int, seed: int, multi_bleu: bool, tokenize: str | None, split: bool) -> None:
    """Refuse settings that sacrebleu would take silently for something else, or that would do nothing."""
    if bootstrap < 0 or bootstrap == 1:
        raise UserError(f"bootstrap is {bootstrap}; give the number of resamples (such as 1000) or 0 for none.")
    if seed < 1:
        raise UserError(f"seed is {seed}; give 1 or more (sacrebleu takes 0 for no seed).")
    if (tokenize is not None or split) and not multi_bleu:
        raise UserError("--tokenize and --split-compounds only concern multi-BLEU; say --multi-bleu as well.")


def _check_lines(references: Sequence[str], systems: Mapping[str, Sequence[str]]) -> None:
    """Refuse empty input, and a system whose lines cannot be paired with the references."""
    if not systems:
        raise UserError("There is no system to evaluate; name at least one file of translations.")
    if not references:
        raise UserError("The references are empty; give a file with one reference per line.")
    for name, lines in systems.items():
        if len(lines) != len(references):
            raise UserError(
                f"System {name!r} has {len(lines)} lines but the references have {len(references)}; "
                "give one line for every reference."
            )
