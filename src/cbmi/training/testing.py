"""The test sets of a run: translated by its best checkpoint and scored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cbmi.data.text import read_pairs
from cbmi.errors import UserError
from cbmi.evaluation.metrics import bleu_tokenizer, corpus_bleu, corpus_chrf
from cbmi.files import read_json, sha256, to_json, write_atomically
from cbmi.progress import bar, say
from cbmi.training.run import Run
from cbmi.training.trained import Trained


def test_run(run: Run) -> dict[str, dict[str, float]]:
    """Translate and score what `data.test` names; the texts and `results.json` go to `run/test`."""
    config = run.config()
    sets = config.data.test
    if not sets:
        return {}
    if not run.best.exists():
        raise UserError(f"{run.best}: the checkpoint is missing; cbmi train chooses another.")
    made_of = {
        "checkpoint": run.best.resolve().name,
        "weights": sha256(run.best / "manifest.json"),
        "files": {name: [sha256(Path(file)) for file in files] for name, files in sets.items()},
    }
    done = _done(run)
    if all(done.get(key) == value for key, value in made_of.items()):
        for name, result in done["results"].items():
            _say(name, result)
        return done["results"]
    model = Trained(run.path, device=config.device, precision=config.precision)
    results = {}
    for name, files in sets.items():
        pairs = list(read_pairs(files, Counter()))
        with bar(f"Translating {name}", len(pairs), "sentences") as progress:
            settings = {"length_penalty": config.validate_.length_penalty, "advance": progress.advance}
            found = model.hypotheses([pair[0] for pair in pairs], beam=config.validate_.beam or 4, **settings)
        texts = [model.target.decode(best[0].ids) if best else "" for best in found]
        write_atomically(run.test / f"{name}.txt", "".join(text + "\n" for text in texts))
        references = [pair[1] for pair in pairs]
        bleu = corpus_bleu(texts, references, bleu_tokenizer(config.data.target))
        results[name] = {"bleu": bleu, "chrf": corpus_chrf(texts, references)}
        _say(name, results[name])
    model.report_truncated()
    tokenizer = {"bleu_tokenizer": bleu_tokenizer(config.data.target)}
    write_atomically(run.test / "results.json", to_json(made_of | tokenizer | {"results": results}))
    return results


def _done(run: Run) -> dict[str, Any]:
    """What was found before; nothing where that cannot be read."""
    try:
        done = read_json(run.test / "results.json")
    except UserError:
        return {}
    return done if isinstance(done, dict) and isinstance(done.get("results"), dict) else {}


def _say(name: str, result: dict[str, float]) -> None:
    say(f"{name}: BLEU {result['bleu']:.2f}, chrF {result['chrf']:.2f}")
