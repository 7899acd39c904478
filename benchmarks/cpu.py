"""Ratios on a CPU: our training against a plain torch.nn.Transformer loop, our beam search against Hugging Face's.

    python benchmarks/cpu.py                                  # the second part needs `pip install transformers`
    python benchmarks/cpu.py --text train.en train.de         # how fast `cbmi prepare` encodes a corpus

Both sides have the same sizes and data, run in turns in one process, and the medians of their times are compared.
Training: model `small`, 8,000 pieces, batches of 2048 target tokens with the lengths of real ones; pairs are sorted
by length, so that the plain loop pads little. Only real target tokens count. Translation: model `base`, 32,768
pieces, beam 4, 27 tokens forced, float32, our weights in Hugging Face's MarianMT.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.config import Data, Model, Optimizer, Vocabulary
from cbmi.data.corpus import Corpus
from cbmi.data.prepare import encode, learn_vocabularies, load_vocabularies
from cbmi.decoding import translate_ids
from cbmi.experiments.benchmark import machine, sentence_lengths
from cbmi.model import pack, shift_right
from cbmi.objectives import build
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.networks import new_translator
from cbmi.training.part import Part
from cbmi.training.step import Stepper
from cbmi.training.supply import Supply
from cbmi.training.validation import SPECIAL
from cbmi.training.world import World

PIECES = 8000
WORLD = World(0, 1, torch.device("cpu"))


def batches(count: int, tokens: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Pairs of random ids, sorted by length, cut where the targets come to `tokens`."""
    random = np.random.default_rng(0)
    target = np.sort(sentence_lengths(random, count * tokens // 20))
    source = np.clip(target * random.normal(1, 0.12, len(target)), 3, 140).astype(np.int64)
    cuts = np.flatnonzero(np.diff(np.cumsum(target) // tokens)) + 1
    groups = [g for g in np.split(np.arange(len(target)), cuts) if target[g].sum() > 0.9 * tokens]
    chosen = [groups[i] for i in np.linspace(0, len(groups) - 1, count).astype(int)]
    pieces = lambda n: random.integers(4, PIECES, n)  # noqa: E731
    return [[(pieces(source[i]), pieces(target[i])) for i in group] for group in chosen]


def our_part(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Part:
    pairs = sorted(pairs, key=lambda pair: -len(pair[1]))
    source, target = (
        pack(np.concatenate(side), np.array([len(s) for s in side])) for side in zip(*pairs, strict=True)
    )
    tokens = len(target.ids)
    return Part(
        source,
        shift_right(target, SPECIAL.begin),
        target,
        mask=torch.ones(tokens, dtype=torch.bool),
        place=torch.arange(tokens),
        numbers={},
        longest=torch.tensor(target.layout.longest),
        tokens=torch.tensor(float(tokens)),
        seed=torch.tensor([1, 2], dtype=torch.int32),
        draw=torch.tensor(1),
    )


class Plain(nn.Module):
    """torch.nn.Transformer with the embeddings around it that a translation model has."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.width = model.width
        self.embedding = nn.Embedding(PIECES, model.width)
        self.positions = nn.Embedding(256, model.width)
        self.transformer = nn.Transformer(
            model.width, model.heads, model.encoder_layers, model.decoder_layers, model.feed_forward, 0.1,
            batch_first=True,
        )  # fmt: skip

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        def embed(ids: Tensor) -> Tensor:
            places = self.positions(torch.arange(ids.shape[1]))
            return F.dropout(self.embedding(ids) * self.width**0.5 + places, 0.1, self.training)

        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        padding = torch.zeros(source.shape).masked_fill(source == 0, float("-inf"))
        hidden = self.transformer(
            embed(source), embed(inputs), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return hidden @ self.embedding.weight.T


def padded(sentences: list[np.ndarray]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.from_numpy(s) for s in sentences], batch_first=True)


def training_sides(tokens: int, count: int) -> tuple[dict[str, Callable[[int], None]], list[int]]:
    model, data = Model(preset="small"), batches(count, tokens)
    network = new_translator(model, (PIECES, PIECES), shared=True).train()
    stepper = Stepper(
        build({"name": "ce"}, "ce"),
        Learner(network, Optimizer(), WORLD, torch.float32),
        None,
        Supply(),
        0.1,
        torch.float32,
        WORLD,
        Meter(WORLD),
    )
    parts = [our_part(pairs) for pairs in data]

    def ours(number: int) -> None:
        stepper.schedule(number + 1)
        stepper.compute([parts[number]])

    plain = Plain(model).train()
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4, betas=(0.9, 0.98))
    grids = [tuple(padded(list(side)) for side in zip(*pairs, strict=True)) for pairs in data]

    def theirs(number: int) -> None:
        source, target = grids[number]
        inputs = F.pad(target, (1, -1), value=SPECIAL.begin)
        logits = plain(source, inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()

    sizes = [sum(len(pair[1]) for pair in pairs) for pairs in data]
    return {"cbmi": ours, "torch.nn.Transformer": theirs}, sizes


def marian(model: Model, pieces: int, ours: nn.Module):
    """Hugging Face's model with our weights."""
    from transformers import MarianConfig, MarianMTModel

    sizes = {side: getattr(model, f"{side}_layers") for side in ("encoder", "decoder")}
    config = MarianConfig(
        vocab_size=pieces, d_model=model.width,
        encoder_ffn_dim=model.feed_forward, decoder_ffn_dim=model.feed_forward,
        encoder_attention_heads=model.heads, decoder_attention_heads=model.heads, activation_function="relu",
        **{f"{side}_layers": count for side, count in sizes.items()}, scale_embedding=True, pad_token_id=SPECIAL.pad,
        decoder_start_token_id=SPECIAL.begin, eos_token_id=SPECIAL.end, bos_token_id=SPECIAL.begin,
        forced_eos_token_id=None, max_position_embeddings=512,
    )  # fmt: skip
    theirs = MarianMTModel(config).eval()
    with torch.no_grad():
        theirs.model.shared.weight.copy_(ours.target_embedding.weight)
        for side in ("encoder", "decoder"):
            for own, other in zip(getattr(ours, side), getattr(theirs.model, side).layers, strict=True):
                copy_layer(own, other)
    return theirs


def copy_layer(own: nn.Module, other: nn.Module) -> None:
    def copy(linears: list[nn.Linear], source: nn.Linear) -> None:
        parts = zip(source.weight.chunk(len(linears)), source.bias.chunk(len(linears)), strict=True)
        for linear, (weight, bias) in zip(linears, parts, strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)

    attention = other.self_attn
    copy([attention.q_proj, attention.k_proj, attention.v_proj], own.self_attention.inputs)
    copy([attention.out_proj], own.self_attention.output)
    if hasattr(own, "cross_attention"):
        attention = other.encoder_attn
        copy([attention.q_proj], own.cross_attention.query)
        copy([attention.k_proj, attention.v_proj], own.cross_attention.memory)
        copy([attention.out_proj], own.cross_attention.output)
    copy([other.fc1], own.feed_forward.inner)
    copy([other.fc2], own.feed_forward.outer)


def translation_sides(sentences: int, at_once: int) -> dict[str, Callable[[int], None]]:
    model, pieces, random = Model(preset="base"), 32768, np.random.default_rng(0)
    ours = new_translator(model, (pieces, pieces), shared=True).eval().requires_grad_(False)
    theirs = marian(model, pieces, ours)
    texts = sorted((random.integers(4, pieces, n) for n in sentence_lengths(random, sentences)), key=len)

    def translate_ours(number: int) -> None:
        translate_ids(ours, [text.tolist() for text in texts], SPECIAL, beam=4, length_penalty=0.6, limit=27)

    @torch.inference_mode()
    def translate_theirs(number: int) -> None:
        for start in range(0, len(texts), at_once):
            ids = padded(texts[start : start + at_once])
            theirs.generate(ids, attention_mask=ids != 0, num_beams=4, min_new_tokens=27, max_new_tokens=27)

    return {"cbmi": translate_ours, f"Hugging Face generate, {at_once} at once": translate_theirs}


def in_turns(sides: dict[str, Callable[[int], None]], rounds: int, items: int) -> dict[str, float]:
    """Median seconds of a round over all items, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            begun = time.perf_counter()
            for number in range(items):
                side(number)
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def show(title: str, seconds: dict[str, float], amount: float, unit: str) -> None:
    ours = seconds["cbmi"]
    for name, value in seconds.items():
        print(f"| {title} | {name} | {amount / value:,.1f} {unit} | {value / ours:.2f} |", flush=True)


def encode_text(files: list[str]) -> None:
    """Pairs/s of encoding, once the vocabulary of 16,000 pieces is there."""
    with tempfile.TemporaryDirectory() as folder:
        data = Data(source="xx", target="yy", train=tuple(files), vocabulary=Vocabulary(size=16000))
        learn_vocabularies(data, Path(folder) / "vocab")
        vocabularies = load_vocabularies(Path(folder) / "vocab", shared=True)
        for attempt in ("first", "second"):
            begun = time.perf_counter()
            encode(data.train, *vocabularies, Path(folder) / attempt, data.max_length)
            pairs = len(Corpus(Path(folder) / attempt))
            print(f"encoding: {pairs / (time.perf_counter() - begun):,.0f} pairs/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--text", nargs=2, metavar=("SOURCE", "TARGET"), help="encode these files, nothing else")
    options = parser.parse_args()
    print(machine(torch.device("cpu")))
    if options.text:
        encode_text(options.text)
        return
    print("\n| | | speed | time over ours |\n|---|---|--:|--:|")
    sides, sizes = training_sides(2048, options.batches)
    show("training, small", in_turns(sides, options.rounds, len(sizes)), sum(sizes), "tokens/s")
    for at_once in (16, 64):
        try:
            sides = translation_sides(options.sentences, at_once)
        except ImportError:
            print("transformers is not installed: translation is not compared")
            return
        show("beam 4, base", in_turns(sides, options.rounds, 1), options.sentences, "sentences/s")


if __name__ == "__main__":
    main()
