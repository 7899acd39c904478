"""The target-side language model: what it begins with, and training it on the labels."""

from __future__ import annotations

import copy
import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from cbmi.errors import UserError, first_line
from cbmi.files import read_json, to_json, write_atomically
from cbmi.huggingface.columns import IGNORED, predicted, require_column

BLOCK = 10_000  # rows read at a time
NOTE = "cbmi.json"  # what a language model was trained on

Start = int | Sequence[int]


def train_language_model(
    tokenizer: Any,
    data: Any,
    *,
    start: Start,
    output: str | Path,
    config: Any = None,
    args: TrainingArguments | None = None,
) -> PreTrainedModel:
    """Train a causal language model on the labels of `data`, and keep it in the folder `output`.

    start: the ids before the first label, such as the model's `decoder_start_token_id`. config: of
    the language model; by default it has the size of a base Transformer's decoder. args: of
    Hugging Face's trainer; by default three epochs. A language model in `output` that was trained
    on the same data is loaded instead; an interrupted training goes on.
    """
    check_dataset(data, "train_language_model")
    if not hasattr(data, "__len__"):
        raise UserError("train_language_model: the data are a stream; give a datasets.Dataset.")
    output = Path(output)
    size = _vocabulary_size(tokenizer, data)
    # A copy: training completes what it says.
    config = copy.deepcopy(config) if config is not None else _base(size, tokenizer, start)
    if config.vocab_size < size:
        raise UserError(
            f"config: its vocabulary has {config.vocab_size} entries, but the labels and the "
            f"tokenizer have {size}."
        )
    settings = {**config.to_diff_dict(), "transformers_version": None}
    note = {"labels": _labels_digest(data), "start": start_ids(start), "config": settings}
    note = json.loads(json.dumps(note))  # as it will be read
    if _is_known(output, note):
        return load_language_model(output)
    args = args or _three_epochs(output / "checkpoints")
    work = Path(str(args.output_dir))
    if _last_checkpoint(str(work)) is not None and not _is_known(work, note):
        raise UserError(f"{work}: there are checkpoints of another training; name another folder.")
    set_seed(args.seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    trainer = Trainer(
        model,
        args,
        train_dataset=data.map(
            _with_start(start_ids(start)),
            remove_columns=data.column_names,
            new_fingerprint=digest_of("rows of a language model", note),
            desc="Rows of the language model",
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
    )
    if trainer.is_world_process_zero():
        work.mkdir(parents=True, exist_ok=True)
        write_atomically(work / NOTE, to_json(note))
    trainer.train(resume_from_checkpoint=_last_checkpoint(str(args.output_dir)))
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(str(output))
        write_atomically(output / NOTE, to_json(note))
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _three_epochs(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=64,
        learning_rate=5e-4,
        warmup_steps=500,
        lr_scheduler_type="linear",
        label_smoothing_factor=0.1,  # as cbmi's own language model
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        save_total_limit=1,
        report_to=[],
    )


def _is_known(folder: Path, note: dict[str, Any]) -> bool:
    """Whether the folder is of this training; refuses one of another."""
    if not (folder / NOTE).exists():
        return False
    known = read_json(folder / NOTE)
    if known == note:
        return True
    what = "settings"
    if isinstance(known, dict) and known.get("labels") != note["labels"]:
        what = "data"
    raise UserError(
        f"{folder}: the language model here was trained on other {what}; name another folder."
    )


def _last_checkpoint(folder: str) -> str | None:
    """Where an interrupted training goes on."""
    if not Path(folder).is_dir():
        return None
    last: str | None = get_last_checkpoint(folder)  # type: ignore[no-untyped-call]
    return last


class _with_start:
    """A row of labels as a row of a language model."""

    def __init__(self, start: list[int]) -> None:
        self.start = start

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        labels = predicted(row["labels"])
        ids = [*self.start, *labels]
        return {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "labels": [IGNORED] * len(self.start) + labels,
        }


def _vocabulary_size(tokenizer: Any, data: Any) -> int:
    """What the language model has to predict: all that the tokenizer knows, and every label."""
    largest = -1
    for block in data.select_columns("labels").iter(BLOCK):
        for row in block["labels"]:
            largest = max(largest, max((int(label) for label in row), default=-1))
    return max(len(tokenizer), largest + 1)


def _base(size: int, tokenizer: Any, start: Start) -> LlamaConfig:
    """As large as the decoder of a base Transformer."""
    return LlamaConfig(
        vocab_size=max(size, *(number + 1 for number in start_ids(start))),
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=8,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=start_ids(start)[0],
        eos_token_id=tokenizer.eos_token_id,
    )


def _labels_digest(data: Any) -> str:
    digest = hashlib.sha256()
    for block in data.select_columns("labels").with_format("arrow").iter(BLOCK):
        labels = block["labels"].combine_chunks()
        for values in (labels.value_lengths(), labels.flatten()):
            digest.update(values.to_numpy(zero_copy_only=False).astype("int64"))
    return digest.hexdigest()


def load_language_model(folder: Path) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: there is no language model here: {reason}.") from None
    return model


def check_dataset(data: Any, what: str) -> None:
    if not hasattr(data, "column_names") or isinstance(data, Mapping):
        raise UserError(f"{what}: give one dataset (datasets.Dataset), not {type(data).__name__}.")
    require_column(data, "labels", what)


def start_ids(start: Start) -> list[int]:
    if start is None:
        raise UserError(
            "start: it is None; give the id that the decoder begins with: for mBART that of the "
            "target language, for a decoder-only model the prompt without the source."
        )
    try:
        return [operator.index(start)]  # type: ignore[arg-type]
    except TypeError:
        return [operator.index(number) for number in start]  # type: ignore[union-attr]


def digest_of(purpose: str, note: Any) -> str:
    text = json.dumps([purpose, note], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
