"""Speed on a CPU, relative to others: training against torch.nn.Transformer, beam search against
Hugging Face.

    python benchmarks/cpu.py                           # translation needs transformers installed
    python benchmarks/cpu.py --text train.en train.de  # how fast `cbmi prepare` encodes a corpus

Both sides have the same sizes and the same data. They take turns in one process, and the medians of
their times are compared.

- Training: model `small`, 8,000 pieces, batches of 2048 target tokens with realistic sentence
  lengths. Pairs are sorted by length, so that the plain loop pads little. Only real target tokens
  count.
- Translation: model `base`, 32,768 pieces, beam 4, 27 tokens forced, float32. Hugging Face's
  MarianMT gets our weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.config import ModelSettings, RunSettings
from cbmi.data.corpus import Corpus
from cbmi.data.prepare import encode, learn_vocabularies, load_vocabularies
from cbmi.data.vocabulary import SPECIALS
from cbmi.data_settings import DataSettings, VocabularySettings
from cbmi.decoding import SearchSettings, translate_ids
from cbmi.experiments.benchmark import machine, sentence_lengths
from cbmi.model import Packed, Translator, pack, shift_right
from cbmi.model.layers import Layer
from cbmi.objectives import build
from cbmi.schema import check
from cbmi.training.batching.micro_batch import MicroBatch
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.networks import new_translator
from cbmi.training.stage_inputs import StageInputs
from cbmi.training.step import Stepper
from cbmi.training.validation import SPECIAL
from cbmi.training.world import World

TRAINING_PIECES = 8_000
TRANSLATION_PIECES = 32_768
TRANSLATION_TOKENS = 27  # of every translation
POSITIONS = 256  # of the plain model's position embeddings
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
CLIP = 5.0  # of the gradient's norm
WORLD = World(0, 1, torch.device("cpu"))

Side = Callable[[int], None]  # works on the item of that number


class Pair(NamedTuple):
    source: np.ndarray  # (source tokens,) ids
    target: np.ndarray  # (target tokens,) ids


def settings_for(preset: str) -> RunSettings:
    values = {
        "output": "none",
        "data": {"source": "xx", "target": "yy", "train": ["none"]},
        "model": preset,
        "stages": [{"name": "ce", "objective": "ce", "steps": 1}],
        "device": "cpu",
        "label_smoothing": LABEL_SMOOTHING,
        "optimizer": {"clip": CLIP},
    }
    return check(RunSettings, values, "benchmark")


def random_batches(count: int, tokens: int) -> list[list[Pair]]:
    """Batches of random ids. Pairs are sorted by length and cut where targets reach `tokens`."""
    random = np.random.default_rng(0)
    target_lengths = np.sort(sentence_lengths(random, count * tokens // 20))
    ratios = random.normal(1, 0.12, len(target_lengths))
    source_lengths = np.clip(target_lengths * ratios, 3, 140).astype(np.int64)
    cuts = np.flatnonzero(np.diff(np.cumsum(target_lengths) // tokens)) + 1
    full_groups = []
    for group in np.split(np.arange(len(target_lengths)), cuts):
        if target_lengths[group].sum() > 0.9 * tokens:
            full_groups.append(group)
    batches = []
    for number in np.linspace(0, len(full_groups) - 1, count).astype(int):
        pairs = []
        for i in full_groups[number]:
            source = random.integers(SPECIALS, TRAINING_PIECES, source_lengths[i])
            target = random.integers(SPECIALS, TRAINING_PIECES, target_lengths[i])
            pairs.append(Pair(source, target))
        batches.append(pairs)
    return batches


def micro_batch_of(pairs: Sequence[Pair]) -> MicroBatch:
    """The pairs as our training step takes them: packed, longest target first."""
    longest_first = sorted(pairs, key=lambda pair: -len(pair.target))
    source = packed([pair.source for pair in longest_first])
    target = packed([pair.target for pair in longest_first])
    tokens = len(target.ids)
    return MicroBatch(
        source=source,
        inputs=shift_right(target, SPECIAL.begin),
        target=target,
        mask=torch.ones(tokens, dtype=torch.bool),
        corpus_index=torch.arange(tokens),
        token_values={},
        longest=torch.tensor(target.layout.longest),
        group=None,
        step_tokens=torch.tensor(float(tokens)),
        dropout_seed=torch.tensor([1, 2], dtype=torch.int32),
        objective_seed=torch.tensor(1),
    )


def packed(sentences: Sequence[np.ndarray]) -> Packed:
    lengths = np.array([len(sentence) for sentence in sentences])
    return pack(np.concatenate(sentences), lengths)


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with the embeddings and the output layer of a translation model."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.width = model.width
        self.embedding = nn.Embedding(TRAINING_PIECES, model.width)
        self.positions = nn.Embedding(POSITIONS, model.width)
        self.transformer = nn.Transformer(
            d_model=model.width,
            nhead=model.heads,
            num_encoder_layers=model.encoder_layers,
            num_decoder_layers=model.decoder_layers,
            dim_feedforward=model.feed_forward,
            dropout=DROPOUT,
            batch_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        positions = self.positions(torch.arange(ids.shape[1]))
        embedded = self.embedding(ids) * self.width**0.5 + positions
        return F.dropout(embedded, DROPOUT, self.training)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """source, inputs (sentences, longest) ids, padded → logits."""
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        # In floats, like the causal mask: PyTorch warns where the two differ.
        padding = torch.zeros(source.shape).masked_fill(source == SPECIAL.pad, float("-inf"))
        hidden = self.transformer(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T


def padded(sentences: Sequence[np.ndarray]) -> Tensor:
    """(sentences, longest) ids."""
    tensors = [torch.from_numpy(sentence) for sentence in sentences]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=SPECIAL.pad)


def our_training(batches: Sequence[Sequence[Pair]]) -> Side:
    config = settings_for("small")
    network = new_translator(config, (TRAINING_PIECES, TRAINING_PIECES)).train()
    stepper = Stepper(
        objective=build({"name": "ce"}, "ce"),
        translator=Learner(network, config.optimizer, WORLD, torch.float32),
        language_model=None,
        stage_inputs=StageInputs(),
        smoothing=LABEL_SMOOTHING,
        precision=torch.float32,
        world=WORLD,
        meter=Meter(WORLD),
    )
    micro_batches = [micro_batch_of(pairs) for pairs in batches]

    def train(number: int) -> None:
        stepper.prepare_update(1e-4)
        stepper.compute([micro_batches[number]])

    return train


def plain_training(batches: Sequence[Sequence[Pair]]) -> Side:
    plain = PlainTransformer(settings_for("small").model).train()
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4, betas=(0.9, 0.98))
    sources = []
    targets = []
    for pairs in batches:
        sources.append(padded([pair.source for pair in pairs]))
        targets.append(padded([pair.target for pair in pairs]))

    def train(number: int) -> None:
        target = targets[number]
        inputs = F.pad(target, (1, -1), value=SPECIAL.begin)
        logits = plain(sources[number], inputs)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            target.flatten(),
            ignore_index=SPECIAL.pad,
            label_smoothing=LABEL_SMOOTHING,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return train


def marian_with_our_weights(model: ModelSettings, ours: Translator) -> Any:
    """Hugging Face's MarianMT, with our weights in it."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=TRANSLATION_PIECES,
        d_model=model.width,
        encoder_layers=model.encoder_layers,
        decoder_layers=model.decoder_layers,
        encoder_ffn_dim=model.feed_forward,
        decoder_ffn_dim=model.feed_forward,
        encoder_attention_heads=model.heads,
        decoder_attention_heads=model.heads,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=SPECIAL.pad,
        bos_token_id=SPECIAL.begin,
        eos_token_id=SPECIAL.end,
        decoder_start_token_id=SPECIAL.begin,
        forced_eos_token_id=None,
    )
    theirs = MarianMTModel(config)
    theirs.eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        theirs.model.shared.weight.copy_(ours.target_embedding.weight)
        for number, layer in enumerate(theirs.model.encoder.layers):
            copy_layer(ours.encoder.layer(number), layer)
        for number, layer in enumerate(theirs.model.decoder.layers):
            copy_layer(ours.decoder.layer(number), layer)
            copy_cross_attention(ours.decoder.layer(number), layer)
    return theirs


def copy_layer(ours: Layer, theirs: Any) -> None:
    """Self-attention and feed-forward; the norms are equal already, since nothing is trained."""
    attention = theirs.self_attn
    copy_linear(ours.self_attention.inputs, [attention.q_proj, attention.k_proj, attention.v_proj])
    copy_linear(ours.self_attention.output, [attention.out_proj])
    copy_linear(ours.feed_forward.inner, [theirs.fc1])
    copy_linear(ours.feed_forward.outer, [theirs.fc2])


def copy_cross_attention(ours: Layer, theirs: Any) -> None:
    attention = theirs.encoder_attn
    copy_linear(ours.cross_attention.query, [attention.q_proj])
    copy_linear(ours.cross_attention.memory, [attention.k_proj, attention.v_proj])
    copy_linear(ours.cross_attention.output, [attention.out_proj])


def copy_linear(ours: nn.Linear, theirs: Sequence[nn.Linear]) -> None:
    """One of our matrices may hold several projections, one below the other."""
    weights = ours.weight.chunk(len(theirs))
    biases = ours.bias.chunk(len(theirs))
    for linear, weight, bias in zip(theirs, weights, biases, strict=True):
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)


def translation_sides(sentences: int, at_once: int) -> dict[str, Side]:
    """Each side translates all sentences. Raises ImportError if transformers is missing."""
    config = settings_for("base")
    sizes = (TRANSLATION_PIECES, TRANSLATION_PIECES)
    ours = new_translator(config, sizes).eval().requires_grad_(False)
    theirs = marian_with_our_weights(config.model, ours)
    random = np.random.default_rng(0)
    lengths = sentence_lengths(random, sentences)
    drawn = [random.integers(SPECIALS, TRANSLATION_PIECES, length) for length in lengths]
    sources = sorted(drawn, key=len)
    search = SearchSettings(SPECIAL, beam=4, length_penalty=0.6)

    def translate_ours(number: int) -> None:
        ids = [source.tolist() for source in sources]
        translate_ids(ours, ids, search, limit=TRANSLATION_TOKENS)

    @torch.inference_mode()
    def translate_theirs(number: int) -> None:
        for start in range(0, len(sources), at_once):
            ids = padded(sources[start : start + at_once])
            theirs.generate(
                ids,
                attention_mask=ids != SPECIAL.pad,
                num_beams=4,
                min_new_tokens=TRANSLATION_TOKENS,
                max_new_tokens=TRANSLATION_TOKENS,
            )

    return {"cbmi": translate_ours, f"Hugging Face generate, {at_once} at once": translate_theirs}


def in_turns(sides: dict[str, Side], rounds: int, items: int) -> dict[str, float]:
    """Median seconds that each side takes for all items; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            for number in range(items):
                side(number)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def show(title: str, seconds: dict[str, float], amount: float, unit: str) -> None:
    ours = seconds["cbmi"]
    for name, value in seconds.items():
        speed = f"{amount / value:,.1f} {unit}"
        print(f"| {title} | {name} | {speed} | {value / ours:.2f} |", flush=True)


def measure_encoding(files: Sequence[str]) -> None:
    """Pairs per second, once the vocabulary of 16,000 pieces is learnt."""
    data = DataSettings(
        source="xx", target="yy", train=tuple(files), vocabulary=VocabularySettings(size=16000)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learn_vocabularies(data, folder / "vocab")
        vocabularies = load_vocabularies(folder / "vocab", shared=True)
        for attempt in ("first", "second"):
            start = time.perf_counter()
            encode([files], data.languages, vocabularies, folder / attempt, data.max_length)
            pairs = len(Corpus(folder / attempt))
            speed = pairs / (time.perf_counter() - start)
            print(f"encoding: {speed:,.0f} pairs/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument(
        "--text", nargs=2, metavar=("SOURCE", "TARGET"), help="encode these files, nothing else"
    )
    options = parser.parse_args()
    print(machine(torch.device("cpu")))
    if options.text:
        measure_encoding(options.text)
        return
    print("\n| | | speed | time over ours |\n|---|---|--:|--:|")
    batches = random_batches(options.batches, 2048)
    tokens = 0
    for pairs in batches:
        tokens += sum(len(pair.target) for pair in pairs)
    sides = {"cbmi": our_training(batches), "torch.nn.Transformer": plain_training(batches)}
    show("training, small", in_turns(sides, options.rounds, len(batches)), tokens, "tokens/s")
    for at_once in (16, 64):
        try:
            sides = translation_sides(options.sentences, at_once)
        except ImportError as error:
            print(f"translation is not compared: {error}")
            return
        seconds = in_turns(sides, options.rounds, 1)
        show("beam 4, base", seconds, options.sentences, "sentences/s")


if __name__ == "__main__":
    main()
