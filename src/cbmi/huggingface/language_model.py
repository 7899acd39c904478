"""The target-side language model: what it begins with, and training it on the labels."""

from __future__ import annotations

import copy
import hashlib
import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    TrainingArguments,
    set_seed,
)

from cbmi.errors import UserError, first_line
from cbmi.files import read_json, to_json, write_atomically
from cbmi.huggingface.collator import AdaptiveCollator
from cbmi.huggingface.columns import IGNORED, predicted, require_column
from cbmi.huggingface.trainer import AdaptiveTrainer

BLOCK = 10_000  # rows read at a time
NOTE = "cbmi.json"  # what a language model was trained on, and how
# Of the trainer's arguments, what a language model is noted to be trained with.
NOTED_ARGUMENTS = (
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "label_smoothing_factor",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "seed",
)

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
    with the same data and settings is loaded instead; an interrupted training is resumed.
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
    if config.pad_token_id in start_ids(start):
        # The embedding of padding is never trained, but here it is what the first label depends on.
        config.pad_token_id = None
    with _apart():
        args = args or _three_epochs(output / "checkpoints")
        work = Path(str(args.output_dir))
        if work.resolve() == output.resolve():
            raise UserError(
                f"args: {work} is where the language model itself goes; name another output_dir."
            )
        note = _note(data, start, config, args)
        if _is_known(output, note):
            return load_language_model(output)
        resumed = last_checkpoint(work)
        if resumed is not None and not _is_known(work, note):
            raise UserError(
                f"{work}: there are checkpoints of another training; name another folder."
            )
        _train(tokenizer, data, start_ids(start), config, args, note, output, resumed)
    # As whoever calls again will have it: in full precision, whatever it was trained in.
    return load_language_model(output)


def _train(
    tokenizer: Any,
    data: Any,
    start: list[int],
    config: Any,
    args: TrainingArguments,
    note: dict[str, Any],
    output: Path,
    resumed: str | None,
) -> None:
    """Train from scratch or from a checkpoint, and keep the result with its note."""
    set_seed(args.seed)
    rows = data.map(
        _with_start(start),
        remove_columns=data.column_names,
        new_fingerprint=digest_of("rows of a language model", note),
        desc="Rows of the language model",
    )
    trainer = AdaptiveTrainer(
        AutoModelForCausalLM.from_config(config),  # type: ignore[no-untyped-call]
        args,
        objective="ce",
        train_dataset=rows,
        data_collator=AdaptiveCollator(tokenizer),
    )
    work = Path(str(args.output_dir))
    if trainer.is_world_process_zero():
        work.mkdir(parents=True, exist_ok=True)
        write_atomically(work / NOTE, to_json(note))
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(str(output))
        write_atomically(output / NOTE, to_json(note))
    trainer.accelerator.wait_for_everyone()


@contextmanager
def _apart() -> Iterator[None]:
    """What accelerate keeps for the whole process, such as its precision, is left as it was."""
    variables = {name: value for name, value in os.environ.items() if _is_of_accelerate(name)}
    state = dict(AcceleratorState._shared_state)
    AcceleratorState._reset_state()
    try:
        yield
    finally:
        for name in filter(_is_of_accelerate, list(os.environ)):
            del os.environ[name]
        os.environ.update(variables)
        AcceleratorState._reset_state()
        AcceleratorState._shared_state.update(state)


def _is_of_accelerate(variable: str) -> bool:
    return variable.startswith("ACCELERATE_")


def _note(data: Any, start: Start, config: Any, args: TrainingArguments) -> dict[str, Any]:
    """What a language model depends on."""
    values = args.to_dict()  # type: ignore[no-untyped-call]
    note = {
        "labels": _labels_digest(data),
        "start": start_ids(start),
        "config": {**config.to_diff_dict(), "transformers_version": None},
        "training": {name: values[name] for name in NOTED_ARGUMENTS},
    }
    noted: dict[str, Any] = json.loads(json.dumps(note))  # as it will be read
    return noted


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
    what = "with other settings"
    if isinstance(known, dict) and known.get("labels") != note["labels"]:
        what = "on other data"
    raise UserError(f"{folder}: the language model here was trained {what}; name another folder.")


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint of Hugging Face's trainer that is complete; None: there is none.

    Its state is written last.
    """
    steps = {}
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        number = state.parent.name.removeprefix("checkpoint-")
        if number.isdigit():
            steps[int(number)] = state.parent
    return str(steps[max(steps)]) if steps else None


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
