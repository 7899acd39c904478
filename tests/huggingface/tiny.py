"""Tiny tokenizers, models, datasets and trainings for the tests; run as a script, it trains."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainingArguments,
    set_seed,
)

from cbmi.huggingface import (
    AdaptiveCollator,
    AdaptiveSeq2SeqTrainer,
    AdaptiveTrainer,
    LanguageModelScores,
)

SIZE = 64
PAD, BOS, EOS, UNK = range(4)
SEQ2SEQ = ("t5", "marian", "m2m100", "bart", "mbart")
WORDS = ["ein", "eine", "der", "die", "das", "haus", "baum", "hund", "katze", "und", "sieht", "rot"]


def tokenizer(ends: bool = False) -> PreTrainedTokenizerFast:
    """BPE over a few German words, "▁" for a space; ends: with the end of sentence."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    text = [" ".join(sentence(random.Random(number))) for number in range(200)]
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    backend.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=36, special_tokens=special, show_progress=False)
    )
    if ends:
        backend.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", EOS)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def sentence(draw: random.Random) -> list[str]:
    return [draw.choice(WORDS) for _ in range(draw.randint(2, 7))]


def pairs(number: int, seed: int = 1) -> list[tuple[str, str]]:
    """Sentences and the same words backwards."""
    draw = random.Random(seed)
    made = []
    for _ in range(number):
        words = sentence(draw)
        made.append((" ".join(words), " ".join(reversed(words))))
    return made


def dataset(number: int = 64, seed: int = 1) -> Dataset:
    tokens = tokenizer()
    rows = []
    for source, target in pairs(number, seed):
        rows.append(
            {
                "input_ids": [*tokens.encode(source), EOS],
                "labels": [*tokens.encode(target), EOS],
            }
        )
    return Dataset.from_list(rows)


def causal_dataset(number: int = 64, seed: int = 1) -> Dataset:
    """Prompt with the source, then the target; the loss is on the target."""
    rows = []
    for row in dataset(number, seed):
        prompt = [BOS, *row["input_ids"][:-1], UNK]
        ids = [*prompt, *row["labels"]]
        rows.append({"input_ids": ids, "labels": [-100] * len(prompt) + row["labels"]})
    return Dataset.from_list(rows)


def language_model(seed: int = 7, dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=0.5,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config).eval()


def model(kind: str, dropout: float = 0.0, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    if kind == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=SIZE,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                attention_dropout=dropout,
                **special,
            )
        )
    if kind == "t5":
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=SIZE,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_heads=2,
                dropout_rate=dropout,
                decoder_start_token_id=PAD,
                pad_token_id=PAD,
                eos_token_id=EOS,
            )
        )
    sizes = {
        "vocab_size": SIZE,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
        **special,
    }
    if kind == "marian":
        return MarianMTModel(MarianConfig(decoder_vocab_size=SIZE, **sizes))
    if kind == "m2m100":
        return M2M100ForConditionalGeneration(
            M2M100Config(encoder_layerdrop=0.0, decoder_layerdrop=0.0, **sizes)
        )
    if kind == "bart":
        return BartForConditionalGeneration(BartConfig(**sizes))
    return MBartForConditionalGeneration(MBartConfig(**sizes))


def scored(data: Dataset) -> Dataset:
    return LanguageModelScores(language_model(), start=BOS).add_to(data)


def arguments(folder: Path, kind: str = "marian", **own: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "max_steps": 20,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 5,
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 5,
        **own,
    }
    if kind == "llama":
        return TrainingArguments(**settings)
    return Seq2SeqTrainingArguments(**settings)


def trainer(
    folder: Path,
    kind: str = "marian",
    objective: Any = "cbmi",
    dropout: float = 0.0,
    data: Dataset | None = None,
    **own: Any,
) -> AdaptiveTrainer:
    if data is None:
        data = scored(causal_dataset() if kind == "llama" else dataset())
    network = model(kind, dropout)
    collator = AdaptiveCollator(tokenizer(), model=None if kind == "llama" else network)
    made = AdaptiveTrainer if kind == "llama" else AdaptiveSeq2SeqTrainer
    set_seed(11)
    return made(
        network,
        arguments(folder, kind, **own),
        objective=objective,
        train_dataset=data,
        eval_dataset=data.select(range(min(8, len(data)))),
        data_collator=collator,
    )


def weights_of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def main() -> None:
    """tiny.py FOLDER JSON: train, and keep the weights in FOLDER/weights.pt."""
    folder = Path(sys.argv[1])
    made = trainer(folder, **json.loads(sys.argv[2]))
    made.train()
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(weights_of(made.model), folder / "weights.pt")


if __name__ == "__main__":
    main()
