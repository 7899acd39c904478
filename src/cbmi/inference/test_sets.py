"""The test sets of a run: translated by its best checkpoint and scored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cbmi.data.text import read_pairs
from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.evaluation.metrics import (
    bleu_tokenizer,
    corpus_bleu,
    corpus_chrf,
    score_signatures,
)
from cbmi.files import read_json, to_json, write_atomically
from cbmi.inference.model import TrainedModel
from cbmi.progress import bar, say
from cbmi.training.run import RunDirectory

Scores = dict[str, dict[str, float]]  # by test set: BLEU and chrF


def score_test_sets(run: RunDirectory) -> Scores:
    """Translate and score what `data.test` names.

    The texts and `results.json` go to `run/test`. What was already done for the same checkpoint and
    the same files is not done again.
    """
    config = run.config()
    if not config.data.test:
        return {}
    if not run.best.exists():
        raise UserError(f"{run.best}: the checkpoint is missing; cbmi train chooses another.")
    made_of = _made_of(run)
    earlier = _earlier_results(run)
    if all(earlier.get(key) == value for key, value in made_of.items()):
        scores: Scores = earlier["results"]
        for name, result in scores.items():
            _report(name, result)
        return scores
    model = TrainedModel(run.path, device=config.device, precision=config.precision)
    scores = {}
    for name, files in config.data.test.items():
        scores[name] = _translate_and_score(model, name, files)
        _report(name, scores[name])
    model.report_truncated()
    tokenizer = bleu_tokenizer(config.data.target)
    record = {
        **made_of,
        "bleu_tokenizer": tokenizer,
        "signatures": score_signatures(tokenizer),
        "results": scores,
    }
    write_atomically(run.test / "results.json", to_json(record))
    return scores


def _made_of(run: RunDirectory) -> dict[str, Any]:
    """What the results depend on."""
    files = {}
    for name, paths in run.config().data.test.items():
        files[name] = [sha256(Path(path)) for path in paths]
    return {
        "checkpoint": run.best.resolve().name,
        "weights": sha256(run.best / "manifest.json"),
        "files": files,
    }


def _translate_and_score(
    model: TrainedModel, name: str, files: tuple[str, ...]
) -> dict[str, float]:
    config = model.config
    pairs = list(read_pairs(files, config.data.languages, Counter()))
    sources = [source for source, _ in pairs]
    references = [target for _, target in pairs]
    with bar(f"Translating {name}", len(pairs), "sentences") as progress:
        found = model.hypotheses(
            sources,
            beam=config.validate_.beam or 4,
            length_penalty=config.validate_.length_penalty,
            advance=progress.advance,
        )
    texts = [model.target.decode(best[0].ids) if best else "" for best in found]
    write_atomically(model.run.test / f"{name}.txt", "".join(text + "\n" for text in texts))
    bleu = corpus_bleu(texts, references, bleu_tokenizer(config.data.target))
    return {"bleu": bleu, "chrf": corpus_chrf(texts, references)}


def _earlier_results(run: RunDirectory) -> dict[str, Any]:
    """What results.json holds; nothing if it cannot be read."""
    try:
        earlier = read_json(run.test / "results.json")
    except UserError:
        return {}
    is_record = isinstance(earlier, dict) and isinstance(earlier.get("results"), dict)
    return earlier if is_record else {}


def _report(name: str, result: dict[str, float]) -> None:
    say(f"{name}: BLEU {result['bleu']:.2f}, chrF {result['chrf']:.2f}")
