"""The model card of an exported model: README.md as model hubs read it."""

from __future__ import annotations

from typing import Any

import yaml

from cbmi.errors import UserError
from cbmi.files import read_json
from cbmi.inference.model import TrainedModel
from cbmi.version import __version__

PROGRAMS = {
    "ctranslate2": "CTranslate2",
    "huggingface": "Hugging Face's transformers",
    "argos": "Argos Translate",
}
CTRANSLATE2 = """\
With cbmi: `cbmi translate . FILE`. Without:

```python
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="{source}")
target = sentencepiece.SentencePieceProcessor(model_file="{target}")
translator = ctranslate2.Translator(".")
pieces = source.encode("A sentence.", out_type=str)
result = translator.translate_batch([pieces], beam_size=4, length_penalty=0.6, patience=2)
print(target.decode(result[0].hypotheses[0]))
```
"""
HUGGINGFACE = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForSeq2SeqLM.from_pretrained(".")
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)[0])
```

The positions of this model are stored in its weights; they differ from those that `MarianMTModel`
computes itself. Loading uses the stored ones, but `save_pretrained` leaves them out: after
fine-tuning, copy both `embed_positions.weight` into what was saved, or keep the state dict. Text
that begins like `>>de<<` is taken for a language code.
"""
ARGOS = """\
```
argospm install FILE.argosmodel
argos-translate --from {source} --to {target} "A sentence."
```
"""


def model_card(
    model: TrainedModel,
    kind: str,
    quantization: str,
    licence: str | None,
    vocabularies: tuple[str, str],
) -> str:
    """Languages, results, settings, and how to load it."""
    source, target = model.languages
    record = _record(model)
    head: dict[str, Any] = {
        "language": [source, target],
        "library_name": "transformers" if kind == "huggingface" else "ctranslate2",
        "pipeline_tag": "translation",
        "tags": ["translation", "cbmi"],
    }
    if licence is not None:
        head["license"] = licence
    if record is not None:
        head["model-index"] = [_index(model, record)]
    use = {
        "ctranslate2": CTRANSLATE2.format(source=vocabularies[0], target=vocabularies[1]),
        "huggingface": HUGGINGFACE,
        "argos": ARGOS.format(source=source, target=target),
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {source} → {target}\n",
        f"A Transformer of {_size(model)}, trained with cbmi {__version__} and exported for "
        f"{PROGRAMS[kind]} ({quantization}).\n",
        "## Use\n",
        use[kind],
    ]
    if record is not None:
        parts += ["## Results\n", _results(record)]
    settings = model.config.plain()
    # What was trained on, and where, is the user's own business.
    for key in ("output", "initialize", "device"):
        settings.pop(key)
    for key in ("train", "valid", "test"):
        settings["data"].pop(key)
    for key in ("model", "source", "target"):
        settings["data"]["vocabulary"].pop(key)
    for stage in settings["stages"]:
        stage["objective"].pop("file", None)
    parts += ["## Training\n", f"```yaml\n{yaml.safe_dump(settings, sort_keys=False)}```\n"]
    return "\n".join(parts)


def _size(model: TrainedModel) -> str:
    shape = model.config.model
    weights = sum(parameter.numel() for parameter in model.translator.parameters())
    return (
        f"{shape.encoder_layers} + {shape.decoder_layers} layers, {shape.width} wide, "
        f"{weights / 1e6:,.1f} million weights"
    )


def _record(model: TrainedModel) -> dict[str, Any] | None:
    """The results of the run's test sets; None if they were not scored with these weights."""
    try:
        record = read_json(model.run.test / "results.json")
    except UserError:
        return None
    known = isinstance(record, dict) and record.get("checkpoint") == model.folder.name
    return record if known and record.get("results") else None


def _index(model: TrainedModel, record: dict[str, Any]) -> dict[str, Any]:
    """The results as model hubs read them."""
    source, target = model.languages
    results = []
    for name, scores in record["results"].items():
        metrics = []
        for key, title in (("bleu", "BLEU"), ("chrf", "chrF")):
            metrics.append({"type": key, "name": title, "value": round(scores[key], 2)})
        task = {"type": "translation", "name": f"Translation {source}-{target}"}
        results.append({"task": task, "dataset": {"type": name, "name": name}, "metrics": metrics})
    return {"name": f"{source}-{target}", "results": results}


def _results(record: dict[str, Any]) -> str:
    lines = ["| test set | BLEU | chrF |", "|---|--:|--:|"]
    for name, scores in record["results"].items():
        lines.append(f"| {name} | {scores['bleu']:.2f} | {scores['chrf']:.2f} |")
    tokenizer = record.get("bleu_tokenizer", "13a")
    note = f"SacreBLEU, tokenizer {tokenizer}"
    signatures = record.get("signatures")  # older runs have none
    if signatures:
        note = "SacreBLEU, " + " and ".join(f"`{one}`" for one in signatures.values())
    return "\n".join([*lines, "", f"{note}, of the weights in float32.", ""])
