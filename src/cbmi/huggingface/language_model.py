"""The target-side language model, trained on the labels."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    TrainingArguments,
    set_seed,
)

from cbmi.errors import UserError, first_line
from cbmi.huggingface.collator import AdaptiveCollator
from cbmi.huggingface.columns import IGNORED, require_column, text_of
from cbmi.huggingface.language_model_note import (
    check_weights,
    digest_of,
    is_known,
    make_note,
    write_note,
)
from cbmi.huggingface.start import Start, check_start, start_ids
from cbmi.huggingface.trainer import AdaptiveTrainer

BLOCK = 10_000  # rows read at a time
# Of a training by default.
EPOCHS = 3
BATCH = 64
WARMUP = 500  # steps at most; a tenth of a short training
TABLES = ("arrow", "pandas", "polars")  # formats of a dataset that give no rows of labels


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
    if not len(data):
        raise UserError("train_language_model: the dataset has no rows.")
    output = Path(output)
    refuse_file(output, "output")
    ids = start_ids(start)
    size, longest = _extent(tokenizer, data)
    # A copy: training completes what it says.
    config = copy.deepcopy(config) if config is not None else _base(size, tokenizer, ids)
    _check_config(config, ids, size, longest)
    if config.pad_token_id in ids:
        # The embedding of padding is never trained, but here it is what the first label depends on.
        config.pad_token_id = None
    with _apart():
        is_default = args is None
        args = args or _three_epochs(output / "checkpoints", len(data))
        work = Path(str(args.output_dir))
        if work.resolve() == output.resolve():
            raise UserError(
                f"args: {work} is where the language model itself goes; name another output_dir."
            )
        note = make_note(data, ids, config, args)
        if is_default:
            note["training"].pop("bf16", None)  # which depends on the machine
        if is_known(output, note, config):
            check_weights(output)
            return load_language_model(output)
        is_begun = is_known(work, note, config)
        if (output / "config.json").exists() and not is_begun:
            raise UserError(f"{output}: there is another model here; name another folder.")
        resumed = last_checkpoint(work)
        if resumed is not None and not is_begun:
            raise UserError(
                f"{work}: there are checkpoints of another training; name another folder."
            )
        _train(tokenizer, data, ids, config, args, note, output, resumed)
    # As whoever calls again will have it: in full precision, whatever it was trained in.
    return load_language_model(output)


def _check_config(config: Any, start: list[int], size: int, longest: int) -> None:
    """Refuse a config that does not fit the data; size, longest: as `_extent` gives them."""
    if config.vocab_size < size:
        raise UserError(
            f"config: its vocabulary has {config.vocab_size} entries, but the labels and the "
            f"tokenizer have {size}."
        )
    check_start(start, config.vocab_size)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and len(start) + longest > positions:
        raise UserError(
            f"the dataset has a row of {longest} labels, but the language model reads at most "
            f"{positions} tokens, the start among them: leave longer rows out."
        )


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
        write_note(work, note)
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(str(output))
        write_note(output, note)
    trainer.accelerator.wait_for_everyone()


@contextmanager
def _apart() -> Iterator[None]:
    """What accelerate keeps for the whole process, such as its precision, is left as it was."""
    variables = {name: value for name, value in os.environ.items() if _is_of_accelerate(name)}
    state = dict(AcceleratorState._shared_state)
    processes = dict(PartialState._shared_state)
    AcceleratorState._reset_state()
    try:
        yield
    finally:
        for name in filter(_is_of_accelerate, list(os.environ)):
            del os.environ[name]
        os.environ.update(variables)
        AcceleratorState._reset_state()
        AcceleratorState._shared_state.update(state)
        PartialState._shared_state.clear()
        PartialState._shared_state.update(processes)


def _is_of_accelerate(variable: str) -> bool:
    return variable.startswith("ACCELERATE_")


def _three_epochs(folder: Path, rows: int) -> TrainingArguments:
    steps = EPOCHS * -(-rows // BATCH)
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=5e-4,
        warmup_steps=min(WARMUP, steps // 10),
        lr_scheduler_type="linear",
        label_smoothing_factor=0.1,  # as cbmi's own language model
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        save_total_limit=1,
        report_to=[],
    )


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint of Hugging Face's trainer that is complete; None: there is none.

    Its state is written last.
    """
    steps = {}
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        number = state.parent.name.removeprefix("checkpoint-")
        if number.isdecimal():
            steps[int(number)] = state.parent
    return str(steps[max(steps)]) if steps else None


class _with_start:
    """A row of labels as a row of a language model."""

    def __init__(self, start: list[int]) -> None:
        self.start = start

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        labels = text_of(row["labels"])
        ids = [*self.start, *labels]
        return {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "labels": [IGNORED] * len(self.start) + labels,
        }


def _extent(tokenizer: Any, data: Any) -> tuple[int, int]:
    """Entries of the vocabulary, all labels among them; labels of the longest row."""
    largest = -1
    longest = 0
    for block in data.select_columns("labels").iter(BLOCK):
        for row in block["labels"]:
            labels = text_of(row)
            # A dataset's format may give tensors.
            largest = max(largest, int(max(labels, default=-1)))
            longest = max(longest, len(labels))
    return max(len(tokenizer), largest + 1), longest


def _base(size: int, tokenizer: Any, start: list[int]) -> LlamaConfig:
    """As large as the decoder of a base Transformer."""
    return LlamaConfig(
        vocab_size=max(size, *(number + 1 for number in start)),
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=8,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=start[0],
        eos_token_id=tokenizer.eos_token_id,
    )


def load_language_model(folder: Path) -> PreTrainedModel:
    """The causal language model in a folder, or of that name on the Hub."""
    # Of a translator, AutoModelForCausalLM would take the decoder, which needs the encoder.
    with suppress(OSError, ValueError):  # a folder of adapters has no config of its own
        refuse_encoder(AutoConfig.from_pretrained(str(folder)), f"{folder}: the model here")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: there is no language model here: {reason}.") from None
    return model


def refuse_file(path: Path, what: str) -> None:
    """Refuse a file, or what would lie below one, where a folder is to be made."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"{what}: {place} is not a folder; name another one.")


def refuse_encoder(config: Any, what: str) -> None:
    """Refuse a translator in place of a language model."""
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{what} has an encoder; give a causal language model, such as train_language_model "
            "makes."
        )


def check_dataset(data: Any, what: str) -> None:
    """Refuse what is not one dataset with rows of labels."""
    if not hasattr(data, "column_names") or isinstance(data, Mapping):
        raise UserError(f"{what}: give one dataset (datasets.Dataset), not {type(data).__name__}.")
    require_column(data, "labels", what)
    form = getattr(data, "format", None)
    if isinstance(form, Mapping) and form.get("type") in TABLES:
        raise UserError(
            f"{what}: the dataset gives its rows as tables ({form['type']}); set with_format(None)."
        )
