"""A run as folders that Hugging Face's transformers loads, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from cbmi.data.vocabulary import BOS, EOS, PAD, Vocabulary
from cbmi.errors import UserError, import_extra
from cbmi.files import to_json
from cbmi.inference.model import TrainedModel
from cbmi.interop.marian import (
    POSITIONS,
    language_model_config,
    language_model_weights,
    marian_config,
    marian_weights,
)
from cbmi.model import Packed
from cbmi.model.fusion import GoldScores

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WHAT = "cbmi export --to huggingface"


def save_translator(model: TrainedModel, folder: Path, dtype: str) -> None:
    """Write configuration, weights and tokenizer."""
    source, target = model.source, model.target
    shared = model.config.data.vocabulary.shared
    config = marian_config(model.translator.shape, len(source), len(target), shared)
    generation = {
        "num_beams": 4,
        "length_penalty": 0.6,
        "max_length": 1024,
        "suppress_tokens": [PAD, BOS],  # which our own search never takes
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    _write(folder, config, marian_weights(model.translator), dtype, model.digests()[0])
    (folder / "generation_config.json").write_text(to_json(generation), encoding="utf-8")
    _write_tokenizer(folder, (source, target), model.languages, shared)


def save_language_model(model: TrainedModel, folder: Path, dtype: str) -> None:
    language_model = model.language_model()
    config = language_model_config(language_model.shape, len(model.target))
    folder.mkdir(exist_ok=True)
    _write(folder, config, language_model_weights(language_model), dtype, model.digests()[1])
    language = model.languages[1]
    _write_tokenizer(folder, (model.target, model.target), (language, language), shared=True)


def _write(
    folder: Path, config: dict[str, Any], weights: Mapping[str, Tensor], dtype: str, run: str | None
) -> None:
    """`run`: the digest of the run's weights."""
    config = config | {"torch_dtype": dtype}
    (folder / "config.json").write_text(to_json(config), encoding="utf-8")
    converted = {}
    for name, weight in weights.items():
        converted[name] = weight.detach().to("cpu", DTYPES[dtype]).contiguous().clone()
    metadata = {"format": "pt", "cbmi_weights": run or ""}
    (folder / "model.safetensors").write_bytes(save(converted, metadata))


def _write_tokenizer(
    folder: Path,
    vocabularies: tuple[Vocabulary, Vocabulary],
    languages: tuple[str, str],
    shared: bool,
) -> None:
    for name, vocabulary in zip(("source.spm", "target.spm"), vocabularies, strict=True):
        (folder / name).write_bytes(vocabulary.model)
    names = ["vocab.json"] if shared else ["vocab.json", "target_vocab.json"]
    for name, vocabulary in zip(names, vocabularies, strict=False):
        pieces = vocabulary.pieces(range(len(vocabulary)))
        ids = {piece: number for number, piece in enumerate(pieces)}
        (folder / name).write_text(to_json(ids), encoding="utf-8")
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages[0],
        "target_lang": languages[1],
        "separate_vocabs": not shared,
        "split_special_tokens": True,  # </s> in a text is text
        "clean_up_tokenization_spaces": False,
        "model_max_length": POSITIONS,
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(to_json(settings), encoding="utf-8")


def load_scorer(
    folder: Path, language_model: Path | None
) -> Callable[[Packed, Packed], GoldScores]:
    """Scores of tokens as transformers computes them from the folders."""
    transformers = import_extra("transformers", WHAT, "huggingface")
    translator = _load(transformers.AutoModelForSeq2SeqLM, folder)
    generator = None
    if language_model is not None:
        generator = _load(transformers.AutoModelForCausalLM, language_model)

    @torch.inference_mode()
    def score(source: Packed, target: Packed) -> GoldScores:
        gold = target.ids[None]
        inputs = torch.cat([gold.new_full((1, 1), BOS), gold[:, :-1]], 1)
        found = translator(input_ids=source.ids[None], decoder_input_ids=inputs)
        nmt = _gold(found.logits, gold)
        lm = None if generator is None else _gold(generator(input_ids=inputs).logits, gold)
        return GoldScores(nmt, torch.full_like(nmt, torch.nan), lm)

    return score


def _load(kind: Any, folder: Path) -> Any:
    """A network in float32, without the library's progress bar."""
    logging = import_extra("transformers.utils.logging", WHAT, "huggingface")
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        network = kind.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    finally:
        if was_shown:
            logging.enable_progress_bar()
    return network.eval()


def _gold(logits: Tensor, gold: Tensor) -> Tensor:
    return logits.double().log_softmax(-1).gather(-1, gold[..., None]).flatten()


def check_tokenizer(
    folder: Path, vocabularies: tuple[Vocabulary, Vocabulary], texts: list[tuple[str, str]]
) -> None:
    """Refuse a tokenizer that does not give our ids, of both sides."""
    transformers = import_extra("transformers", WHAT, "huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    source, target = vocabularies
    for one, other in texts:
        found = tokenizer(one, text_target=other)
        expected = [source.encode([one])[0], target.encode([other])[0]]
        # Text that begins like >>xx<< is a language code there.
        for text, ids, wanted in zip(
            (one, other), (found["input_ids"], found["labels"]), expected, strict=True
        ):
            if list(ids) != wanted and not text.startswith(">>"):
                raise UserError(
                    f"the exported tokenizer splits {text[:50]!r} in another way; nothing was "
                    "written."
                )
