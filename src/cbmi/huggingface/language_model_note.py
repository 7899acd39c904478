"""The note in a language model's folder: what it was trained on, and how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from cbmi.digests import digest
from cbmi.errors import UserError
from cbmi.files import read_json, to_json, write_atomically

BLOCK = 10_000  # rows read at a time
NOTE = "cbmi.json"
FILES = "files"  # there: digests of the weights
# How the names of those arguments of the trainer begin that weights depend on.
NOTED_ARGUMENTS = (
    "adam_",
    "average_tokens_across_devices",
    "bf16",
    "data_seed",
    "dataloader_drop_last",
    "fp16",
    "full_determinism",
    "gradient_accumulation_steps",
    "group_by_length",
    "label_smoothing_factor",
    "learning_rate",
    "lr_scheduler_",
    "max_grad_norm",
    "max_steps",
    "neftune_",
    "num_train_epochs",
    "optim",
    "per_device_train_batch_size",
    "seed",
    "train_sampling_",
    "warmup_",
    "weight_decay",
)


def make_note(data: Any, start: list[int], config: Any, args: TrainingArguments) -> dict[str, Any]:
    """What a language model depends on."""
    values = args.to_dict()  # type: ignore[no-untyped-call]
    # On the same devices: accelerate keeps those of the latest arguments for the whole process.
    plain = TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu)
    defaults = plain.to_dict()  # type: ignore[no-untyped-call]
    training = {}
    for name, value in values.items():
        # Versions of transformers do not have the same arguments, so defaults are left out.
        if name.startswith(NOTED_ARGUMENTS) and value != defaults.get(name):
            training[name] = value
    note = {
        "labels": _labels_digest(data),
        "start": start,
        "config": _noted_config(config),
        "training": training,
    }
    noted: dict[str, Any] = json.loads(json.dumps(note))  # as it will be read
    return noted


def _noted_config(config: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {**config.to_diff_dict(), "transformers_version": None}
    return settings


def write_note(folder: Path, note: dict[str, Any]) -> None:
    """Of a training that begins, or of what it has saved in the folder."""
    write_atomically(folder / NOTE, to_json({**note, FILES: _weights_files(folder)}))


def is_known(folder: Path, note: dict[str, Any], config: Any) -> bool:
    """Whether the folder is of this training; refuses one of another."""
    if not (folder / NOTE).exists():
        return False
    known = read_json(folder / NOTE)
    if not isinstance(known, dict) or not isinstance(known.get("config"), dict):
        raise UserError(
            f"{folder / NOTE}: this does not say what was trained; name another folder."
        )
    # Versions of transformers write the same config differently.
    read = _noted_config(type(config).from_dict(known["config"]))
    known["config"] = json.loads(json.dumps(read))
    if all(known.get(key) == value for key, value in note.items()):
        return True
    what = "on other data" if known.get("labels") != note["labels"] else "with other settings"
    raise UserError(f"{folder}: the language model here was trained {what}; name another folder.")


def check_weights(folder: Path) -> None:
    """Refuse a folder in which another model was saved after the language model."""
    if read_json(folder / NOTE).get(FILES, _weights_files(folder)) != _weights_files(folder):
        raise UserError(
            f"{folder}: another model was saved here after the language model; name another folder."
        )


def _weights_files(folder: Path) -> dict[str, str]:
    """Digests of the files of weights, by name."""
    return {path.name: digest(path) for path in sorted(folder.glob("*.safetensors"))}


def _labels_digest(data: Any) -> str:
    total = hashlib.sha256()
    for block in data.select_columns("labels").with_format("arrow").iter(BLOCK):
        labels = block["labels"].combine_chunks()
        for values in (labels.value_lengths(), labels.flatten()):
            total.update(values.to_numpy(zero_copy_only=False).astype("int64"))
    return total.hexdigest()


def digest_of(purpose: str, note: Any) -> str:
    text = json.dumps([purpose, note], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
