"""What `cbmi.huggingface` costs over the stock trainer, and how fast labels are scored.

    python benchmarks/huggingface.py [--steps 200] [--pairs 400000] [--size base]    # 0: left out

Prints a Markdown table: milliseconds per step of Hugging Face's Seq2SeqTrainer on a Marian of that
size, with its own loss and with objectives of cbmi on cached scores, each measured in turn three
times; and the seconds in which a language model of that size scores so many labels. Sentences have
27 pieces on average; the text is random.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from cbmi.config import PRESETS
from cbmi.huggingface import AdaptiveCollator, AdaptiveSeq2SeqTrainer, LanguageModelScores
from cbmi.reporting.tables import markdown_table

PIECES = 32_000
LENGTH = 27
PAD, BOS, EOS = range(3)
WARM_UP = 20  # steps
ROUNDS = 3


class _Tokenizer:
    """What the collator asks of one."""

    pad_token_id = PAD
    padding_side = "right"


class _Clock(TrainerCallback):
    """Seconds per step after the warm-up."""

    def __init__(self) -> None:
        self.started = 0.0
        self.steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == WARM_UP:
            self.started = _now()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.steps = state.global_step - WARM_UP
        self.seconds = (_now() - self.started) / self.steps


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@functools.cache  # they take longer to make than some steps on them
def rows(pairs: int, with_scores: bool) -> Dataset:
    random = np.random.default_rng(1)
    lengths = np.maximum(random.poisson(LENGTH, pairs), 2)
    ends = lengths.cumsum()
    columns = {}
    for name in ("input_ids", "labels"):
        ids = random.integers(4, PIECES, ends[-1])
        ids[ends - 1] = EOS
        columns[name] = _lists(ids, ends)
    if with_scores:
        columns["lm"] = _lists(-random.exponential(3, ends[-1]).astype(np.float32), ends)
    # Named, since not every Python can pickle a table to make a name of it.
    table = InMemoryTable(pyarrow.table(columns))
    return Dataset(table, fingerprint=f"{pairs}-{with_scores}")


def _lists(values: np.ndarray, ends: np.ndarray) -> pyarrow.Array:
    """The values as a column of lists; `ends`: where each list ends."""
    return pyarrow.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), values)


def marian(size: str) -> MarianMTModel:
    sizes = PRESETS[size]
    torch.manual_seed(1)
    return MarianMTModel(
        MarianConfig(
            vocab_size=PIECES,
            decoder_vocab_size=PIECES,
            d_model=sizes["width"],
            encoder_ffn_dim=sizes["feed_forward"],
            decoder_ffn_dim=sizes["feed_forward"],
            encoder_layers=sizes["encoder_layers"],
            decoder_layers=sizes["decoder_layers"],
            encoder_attention_heads=sizes["heads"],
            decoder_attention_heads=sizes["heads"],
            max_position_embeddings=256,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
    )


def step_seconds(size: str, objective: Any, steps: int, sentences: int, smoothing: float) -> float:
    """Seconds per step; objective None: the stock trainer."""
    network = marian(size)
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            output_dir=folder,
            max_steps=WARM_UP + steps,
            per_device_train_batch_size=sentences,
            label_smoothing_factor=smoothing,
            bf16=torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=100_000,
        )
        settings: dict[str, Any] = {
            "train_dataset": rows(
                min((WARM_UP + steps) * sentences, 20_000), objective is not None
            ),
            "data_collator": AdaptiveCollator(_Tokenizer(), model=network),
            "callbacks": [clock],
        }
        if objective is None:
            trainer: Seq2SeqTrainer = Seq2SeqTrainer(network, args, **settings)
        else:
            trainer = AdaptiveSeq2SeqTrainer(network, args, objective=objective, **settings)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.seconds


def scoring_seconds(size: str, pairs: int) -> float:
    sizes = PRESETS[size]
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=PIECES,
            hidden_size=sizes["width"],
            intermediate_size=sizes["feed_forward"],
            num_hidden_layers=sizes["decoder_layers"],
            num_attention_heads=sizes["heads"],
            tie_word_embeddings=True,
        )
    )
    data = rows(pairs, False)
    scores = LanguageModelScores(network, start=BOS)
    started = _now()
    scores.add_to(data)
    return _now() - started


def steps_table(options: argparse.Namespace) -> str:
    systems = {"stock trainer": None, "`ce`": "ce", "`cbmi`": "cbmi"}
    lines = []
    for smoothing in (0.0, 0.1):
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(ROUNDS):
            for name, objective in systems.items():
                seconds = step_seconds(
                    options.size, objective, options.steps, options.sentences, smoothing
                )
                times[name].append(seconds)
        stock = median(times["stock trainer"])
        for name, found in times.items():
            milliseconds = f"{1000 * median(found):.1f}"
            lines.append([f"{smoothing}", name, milliseconds, f"{median(found) / stock:.2f}"])
    return markdown_table(["label smoothing", "loss", "ms per step", "ratio"], lines, "llrr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sentences", type=int, default=256, help="in a batch")
    parser.add_argument("--pairs", type=int, default=400_000)
    parser.add_argument("--size", default="base", choices=PRESETS)
    options = parser.parse_args()
    if options.steps:
        print(steps_table(options))
    if options.pairs:
        seconds = scoring_seconds(options.size, options.pairs)
        print(
            f"\n{options.pairs:,} pairs scored in {seconds:.1f} s by a language model of size "
            f"{options.size}"
        )


if __name__ == "__main__":
    main()
