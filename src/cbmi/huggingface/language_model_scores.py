"""Scores of the language model as a column: log p_LM of every label."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from cbmi.errors import UserError
from cbmi.huggingface.columns import LM, text_of
from cbmi.huggingface.language_model import (
    check_dataset,
    load_language_model,
    refuse_encoder,
    refuse_file,
)
from cbmi.huggingface.language_model_note import digest_of
from cbmi.huggingface.scores import gold_scores
from cbmi.huggingface.start import Start, check_start, start_ids
from cbmi.version import __version__

ROWS = 2000  # sorted by length and scored at a time
TOKENS = {"cpu": 4096, "cuda": 32768}  # in a batch that is scored
LOGITS = 1 << 30  # in a batch that is scored
ADAPTER_STATE = ("disable_adapters", "active_adapters", "merged_adapters", "scaling")
NOISE = 1e-2  # by which logits may differ that are computed of the same tokens


class LanguageModelScores:
    """log p_LM of the labels of a dataset, by any causal language model with their tokenizer.

    lm: the model, or its folder or name. start: the ids before the first label: a begin symbol, or,
    for decoder-only translators, the prompt without the source. tokenizer: the translator's; if the
    language model comes with one of its own, both are compared.
    """

    def __init__(self, lm: Any, *, start: Start, tokenizer: Any = None) -> None:
        self.start = start_ids(start)
        if isinstance(lm, str | Path):
            folder = str(lm)
            lm = load_language_model(Path(folder))
            if tokenizer is not None:
                _check_tokenizers(_tokenizer_of(folder), tokenizer, folder)
        lm = getattr(lm, "_orig_mod", lm)  # of torch.compile
        if not isinstance(lm, PreTrainedModel) and not hasattr(lm, "get_base_model"):
            raise UserError(
                f"lm: give a causal language model, its folder or name, not {type(lm).__name__}."
            )
        refuse_encoder(lm.config, f"lm: {type(lm).__name__}")
        self.lm: Any = lm
        self.size = int(lm.get_output_embeddings().weight.shape[0])
        check_start(self.start, self.size)
        self._check_parameters()

    def _check_parameters(self) -> None:
        if any(parameter.is_meta for parameter in self.lm.parameters()):
            raise UserError(
                "lm: some of its weights are offloaded to CPU or disk; load it onto one device."
            )

    def add_to(self, data: Any, cache: str | Path | None = None) -> Any:
        """The dataset with a column of log p_LM.

        The column is kept where `datasets` keeps what it computes, or in the folder `cache`; it is
        made again only if language model, start or data differ. A dataset in memory has no such
        place, and one that streams is scored as it is read.
        """
        check_dataset(data, "LanguageModelScores")
        options: dict[str, Any] = {"batched": True, "batch_size": ROWS, "input_columns": ["labels"]}
        if hasattr(data, "__len__"):
            fingerprint = digest_of("log p of labels", self._note(data))
            options |= {"new_fingerprint": fingerprint, "desc": "Scoring with the language model"}
            if cache is not None:
                refuse_file(Path(cache), "cache")
                Path(cache).mkdir(parents=True, exist_ok=True)
                options["cache_file_name"] = str(Path(cache) / f"{LM}-{fingerprint}.arrow")
        else:
            # It is scored later, whatever becomes of the model meanwhile.
            kept = LanguageModelScores(copy.deepcopy(self.lm), start=self.start)
            with kept._ready():
                kept._check_causal()
            return data.map(kept._score_rows, **options)
        with self._ready():
            self._check_causal()
            return data.map(self._score_rows, **options)

    @torch.inference_mode()
    def _check_causal(self) -> None:
        """Refuse a model whose score of the first label depends on the second."""
        first, *others = (number % self.size for number in (1, 0, self.size - 1))
        rows = [[*self.start, first, other] for other in others]
        ids = torch.tensor(rows, device=self.lm.device)
        logits = self._logits(ids, torch.ones_like(ids))[:, len(self.start) - 1]
        if (logits[0] - logits[1]).abs().max() > NOISE * logits.abs().max():
            raise UserError(
                f"lm: {type(self.lm).__name__} reads ahead: its score of a label depends on the "
                "labels that follow; give a causal language model."
            )

    def _logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(rows, length, entries)"""
        outputs = self.lm(input_ids=ids, attention_mask=mask, use_cache=False)
        # Adapters that learn a prompt put it before the tokens.
        logits: Tensor = outputs.logits[:, -ids.shape[1] :]
        return logits

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
            "adapters": _adapters(self.lm),
            "version": __version__,
        }

    def _score_rows(self, rows: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
        """The column's values for some rows of labels."""
        if torch.utils.data.get_worker_info() is not None and _device().type == "cuda":
            raise UserError(
                "dataloader_num_workers: a stream is scored on the GPU, which only the main "
                "process can do; set it to 0, or score a datasets.Dataset beforehand."
            )
        with self._ready():
            return {LM: self._scores(rows)}

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        labels = [text_of(row) for row in rows]
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
        logits = self._logits(ids[:, :-1], mask[:, :-1].to(device))[:, first - 1 :]
        log_p, _ = gold_scores(logits.flatten(0, 1), ids[:, first:].flatten())
        rows = log_p.view(len(labels), -1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _tokenizer_of(folder: str) -> Any:
    """The tokenizer that a language model comes with; None: it has none."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError):
        return None


def _device() -> torch.device:
    """A GPU, of several processes each its own; or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    return torch.device(f"cuda:{number}")


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


def _adapters(model: Any) -> list[Any]:
    """What adapters (PEFT) do to the weights: which are active, merged or off, how strongly."""
    prompt = getattr(model, "active_adapter", None)
    # One that has learnt a prompt is off while `forward` is that of the model below.
    found: list[Any] = [prompt if isinstance(prompt, str) else None, "forward" in vars(model)]
    for name, module in model.named_modules():
        if isinstance(getattr(module, "disable_adapters", None), bool):
            state = [repr(getattr(module, key, None)) for key in ADAPTER_STATE]
            found.append([name, *state])
    return found


def _weights_digest(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
