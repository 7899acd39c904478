"""The model card of an exported model: README.md as model hubs read it."""

from __future__ import annotations

import yaml

from cbmi.errors import UserError
from cbmi.files import read_json
from cbmi.inference.model import TrainedModel
from cbmi.version import __version__

LOADING = """\
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


def model_card(
    model: TrainedModel, quantization: str, licence: str | None, vocabularies: tuple[str, str]
) -> str:
    """Languages, results, settings, and how to load it."""
    source, target = model.languages
    head = {"language": [source, target], "library_name": "ctranslate2", "tags": ["translation"]}
    if licence is not None:
        head["license"] = licence
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {source} → {target}\n",
        f"A Transformer of {_size(model)}, trained with cbmi {__version__} and exported for "
        f"CTranslate2 ({quantization}).\n",
        "## Use\n",
        "With cbmi: `cbmi translate . FILE`. Without:\n",
        LOADING.format(source=vocabularies[0], target=vocabularies[1]),
    ]
    results = _results(model)
    if results:
        parts += ["## Results\n", results]
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


def _results(model: TrainedModel) -> str:
    """A table of the run's test sets; nothing if they were not scored with these weights."""
    try:
        record = read_json(model.run.test / "results.json")
    except UserError:
        return ""
    known = isinstance(record, dict) and record.get("checkpoint") == model.folder.name
    if not known or not record.get("results"):
        return ""
    lines = ["| test set | BLEU | chrF |", "|---|--:|--:|"]
    for name, scores in record["results"].items():
        lines.append(f"| {name} | {scores['bleu']:.2f} | {scores['chrf']:.2f} |")
    tokenizer = record.get("bleu_tokenizer", "13a")
    note = f"SacreBLEU, tokenizer {tokenizer}, of the weights in float32."
    return "\n".join([*lines, "", note, ""])
