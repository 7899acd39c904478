"""The target-side language model: trained on the labels, and its scores as a column."""

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
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
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
from cbmi.huggingface.columns import IGNORED, LM, predicted, require_column
from cbmi.huggingface.scores import gold_scores
from cbmi.version import __version__

BLOCK = 10_000  # rows read at a time
ROWS = 2000  # sorted by length and scored at a time
TOKENS = {"cpu": 4096, "cuda": 32768}  # in a batch that is scored
LOGITS = 1 << 30  # in a batch that is scored
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
    _check_dataset(data, "train_language_model")
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
    note = {"labels": _labels_digest(data), "start": _ids(start), "config": settings}
    note = json.loads(json.dumps(note))  # as it will be read
    if _is_known(output, note):
        return _load(output)
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
            _with_start(_ids(start)),
            remove_columns=data.column_names,
            new_fingerprint=_digest("rows of a language model", note),
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


class LanguageModelScores:
    """log p_LM of the labels of a dataset, by any causal language model with their tokenizer.

    lm: the model, or its folder or name. start: the ids before the first label: a begin symbol, or,
    for decoder-only translators, the prompt without the source. tokenizer: the translator's; if the
    language model comes with one of its own, both are compared.
    """

    def __init__(self, lm: Any, *, start: Start, tokenizer: Any = None) -> None:
        self.start = _ids(start)
        if not self.start:
            raise UserError("start: give at least one id, such as decoder_start_token_id.")
        if isinstance(lm, str | Path):
            folder = str(lm)
            lm = _load(Path(folder))
            if tokenizer is not None:
                _check_tokenizers(_tokenizer_of(folder), tokenizer, folder)
        if getattr(lm.config, "is_encoder_decoder", False):
            raise UserError(
                f"lm: {type(lm).__name__} has an encoder; give a causal language model, such as "
                "train_language_model makes."
            )
        self.lm: Any = lm
        self.size = int(lm.get_output_embeddings().weight.shape[0])
        beyond = [number for number in self.start if not 0 <= number < self.size]
        if beyond:
            raise UserError(f"start: the language model has no id {beyond[0]}.")

    def add_to(self, data: Any, cache: str | Path | None = None) -> Any:
        """The dataset with a column of log p_LM.

        The column is kept where `datasets` keeps what it computes, or in the folder `cache`; it is
        made again only if language model, start or data differ. A dataset in memory has no such
        place, and one that streams is scored as it is read.
        """
        _check_dataset(data, "LanguageModelScores")
        options: dict[str, Any] = {"batched": True, "batch_size": ROWS, "input_columns": ["labels"]}
        if hasattr(data, "__len__"):
            fingerprint = _digest("log p of labels", self._note(data))
            options |= {"new_fingerprint": fingerprint, "desc": "Scoring with the language model"}
            if cache is not None:
                Path(cache).mkdir(parents=True, exist_ok=True)
                options["cache_file_name"] = str(Path(cache) / f"{LM}-{fingerprint}.arrow")
        else:
            # It is scored later, whatever becomes of the model meanwhile.
            kept = LanguageModelScores(copy.deepcopy(self.lm), start=self.start)
            return data.map(kept._score_rows, **options)
        with self._ready():
            return data.map(self._score_rows, **options)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """The language model without dropout, on a GPU if there is one; then as it was."""
        before = self.lm.device
        was_training = self.lm.training
        # Quantized models, and those that are spread over devices, stay where they are.
        is_fixed = hasattr(self.lm, "hf_device_map") or hasattr(self.lm, "quantization_method")
        if not is_fixed:
            self.lm.to(_device())
        self.lm.eval()
        try:
            yield
        finally:
            self.lm.train(was_training)
            if not is_fixed:
                self.lm.to(before)

    def _note(self, data: Any) -> dict[str, Any]:
        return {
            "data": data._fingerprint,  # of all its columns: they go into the result
            "start": self.start,
            "weights": _weights_digest(self.lm),
            "config": self.lm.config.to_json_string(),
            "version": __version__,
        }

    def _score_rows(self, rows: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
        """The column's values for some rows of labels."""
        with self._ready():
            return {LM: self._scores(rows)}

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        labels = [predicted(row) for row in rows]
        scores: list[list[float]] = [[] for _ in labels]
        limit = min(TOKENS.get(self.lm.device.type, 4096), max(1, LOGITS // self.size))
        # Rows of like length together: little padding.
        by_length = sorted(range(len(labels)), key=lambda number: len(labels[number]))
        batch: list[int] = []
        for place, number in enumerate(by_length):
            batch.append(number)
            following = by_length[place + 1] if place + 1 < len(by_length) else None
            longest = 0 if following is None else len(self.start) + len(labels[following])
            if following is None or (len(batch) + 1) * longest > limit:
                found = self.log_probabilities([labels[one] for one in batch])
                for one, values in zip(batch, found, strict=True):
                    scores[one] = values
                batch = []
        return scores

    @torch.inference_mode()
    def log_probabilities(self, labels: Sequence[Sequence[int]]) -> list[list[float]]:
        """log p of each label, given the start and the labels before it."""
        lengths = [len(row) for row in labels]
        if not any(lengths):
            return [[] for _ in labels]
        first = len(self.start)
        positions = getattr(self.lm.config, "max_position_embeddings", None)
        if positions is not None and first + max(lengths) - 1 > positions:
            raise UserError(
                f"the dataset has a row of {max(lengths)} labels, but the language model reads at "
                f"most {positions} tokens, the start among them: leave longer rows out."
            )
        ids = torch.zeros(len(labels), first + max(lengths), dtype=torch.int64)
        ids[:, :first] = torch.tensor(self.start)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(labels):
            if row and not 0 <= max(row) < self.size:
                raise UserError(
                    f"the dataset has the label {max(row)}, but the language model's vocabulary "
                    f"has {self.size} entries: it belongs to another tokenizer."
                )
            ids[number, first : first + len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[number, : first + len(row)] = 1
        device = self.lm.device
        ids = ids.to(device)
        outputs = self.lm(
            input_ids=ids[:, :-1], attention_mask=mask[:, :-1].to(device), use_cache=False
        )
        logits: Tensor = outputs.logits[:, first - 1 :]
        log_p, _ = gold_scores(logits.flatten(0, 1), ids[:, first:].flatten())
        rows = log_p.view(len(labels), -1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _load(folder: Path) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: there is no language model here: {reason}.") from None
    return model


def _tokenizer_of(folder: str) -> Any:
    """The tokenizer that a language model comes with; None: it has none."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError):
        return None


def _check_dataset(data: Any, what: str) -> None:
    if not hasattr(data, "column_names") or isinstance(data, Mapping):
        raise UserError(f"{what}: give one dataset (datasets.Dataset), not {type(data).__name__}.")
    require_column(data, "labels", what)


def _device() -> torch.device:
    """A GPU, of several processes each its own; or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}")


def _check_tokenizers(of_lm: Any, of_model: Any, where: str) -> None:
    if of_lm is not None and _target_pieces(of_lm) != _target_pieces(of_model):
        raise UserError(
            f"{where}: its tokenizer is not the translator's, so its scores are of other tokens; "
            "train a language model with the translator's tokenizer."
        )


def _target_pieces(tokenizer: Any) -> Any:
    if getattr(tokenizer, "separate_vocabs", False):
        return tokenizer.target_encoder
    return tokenizer.get_vocab()


def _ids(start: Start) -> list[int]:
    if start is None:
        raise UserError(
            "start: it is None; give the id that the decoder begins with: for mBART that of the "
            "target language, for a decoder-only model the prompt without the source."
        )
    try:
        return [operator.index(start)]  # type: ignore[arg-type]
    except TypeError:
        return [operator.index(number) for number in start]  # type: ignore[union-attr]


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
        vocab_size=max(size, *(number + 1 for number in _ids(start))),
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=8,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=_ids(start)[0],
        eos_token_id=tokenizer.eos_token_id,
    )


def _labels_digest(data: Any) -> str:
    digest = hashlib.sha256()
    for block in data.select_columns("labels").with_format("arrow").iter(BLOCK):
        labels = block["labels"].combine_chunks()
        for values in (labels.value_lengths(), labels.flatten()):
            digest.update(values.to_numpy(zero_copy_only=False).astype("int64"))
    return digest.hexdigest()


def _weights_digest(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest(purpose: str, note: Any) -> str:
    text = json.dumps([purpose, note], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
