"""One training step: batches to losses to gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus
from cbmi.data.plan import share
from cbmi.data.vocabulary import BOS
from cbmi.model import LanguageModel, Packed, pack, shift_right
from cbmi.objectives import Objective, TokenScores
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.networks import seed_for
from cbmi.training.world import World


@dataclass(frozen=True)
class Part:
    """What one rank computes at once: its share of a step, or of an accumulated part of it."""

    source: Packed
    inputs: Packed  # what the decoder reads
    target: Packed  # what it is to predict
    mask: Tensor  # (target tokens,) false where the part is only there to keep the ranks in step
    longest: int  # target tokens in the longest sentence of this part on any rank


def make_part(corpus: Corpus, pairs: np.ndarray, device: torch.device, longest: int = 0, real: bool = True) -> Part:
    target = pack(*corpus.target.select(pairs), device)
    mask = torch.full_like(target.ids, real, dtype=torch.bool)
    source = pack(*corpus.source.select(pairs), device)
    return Part(source, shift_right(target, BOS), target, mask, max(longest, target.layout.longest))


def make_parts(corpus: Corpus, pairs: np.ndarray, accumulate: int, world: World) -> list[Part]:
    """This rank's parts of a step. A rank that gets no sentence computes one that counts nowhere."""
    lengths = corpus.target.lengths
    shares = share(pairs, lengths, accumulate * world.size)
    parts = []
    for number in range(accumulate):
        together = shares[number * world.size : (number + 1) * world.size]
        mine = together[world.rank]
        longest = max((int(lengths[one].max()) for one in together if len(one)), default=0)
        filler = len(mine) == 0
        parts.append(make_part(corpus, pairs[:1] if filler else mine, world.device, longest, not filler))
    return parts


@dataclass
class Stepper:
    """What a stage's steps have in common."""

    objective: Objective
    translator: Learner
    language_model: Learner | None  # where it learns in this stage
    frozen: LanguageModel | None  # where it only scores
    smoothing: float
    precision: torch.dtype
    world: World
    meter: Meter
    seed: int

    def step(self, parts: list[Part], tokens: int, number: int, schedule_step: int) -> dict[str, Tensor]:
        """One update of every network that learns; `tokens`: real target tokens of the whole step, all ranks.

        Gives the gradients' norms.
        """
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            lm = self._language_model(part, tokens, (number, i), last)
            self._translator(part, lm, tokens, (number, i), last)
        norms = {"grad_norm": self.translator.step(schedule_step)}
        if self.language_model:
            norms["lm_grad_norm"] = self.language_model.step(schedule_step)
        return norms

    def _language_model(self, part: Part, tokens: int, at: tuple[int, int], last: bool) -> Tensor | None:
        """log p_LM of the gold tokens, detached; where the model learns, its gradient is added on the way."""
        if self.frozen is not None:
            with torch.no_grad(), self._autocast():
                return self.frozen(part.inputs, part.target.ids)[0]
        if self.language_model is None:
            return None
        self._draw_dropout("language model", at)
        with self.language_model.unsynchronised(not last), self._autocast():
            gold, mean = self.language_model.run(part.inputs, part.target.ids)
        scores = self._scores(part, gold, mean, None)
        loss = (scores.cross_entropy(self.smoothing) * part.mask).sum() / tokens
        self.language_model.backward(loss * self.world.size, last)
        return gold.detach()

    def _translator(self, part: Part, lm: Tensor | None, tokens: int, at: tuple[int, int], last: bool) -> None:
        self._draw_dropout("translator", at)
        with self.translator.unsynchronised(not last), self._autocast():
            gold, mean = self.translator.run(part.source, part.inputs, part.target.ids)
        scores = self._scores(part, gold, mean, lm)
        weights = self.objective.weights(scores)
        losses = scores.cross_entropy(self.smoothing) * part.mask
        losses = losses if weights is None else losses * weights
        self.translator.backward(losses.sum() / tokens * self.world.size, last)
        self._measure(scores, losses, weights)

    def _scores(self, part: Part, nmt: Tensor, mean: Tensor, lm: Tensor | None) -> TokenScores:
        layout = part.target.layout
        return TokenScores(nmt, mean, lm, part.mask, layout.sentence, layout.sentences, part.longest, self.world.sum)

    def _measure(self, scores: TokenScores, losses: Tensor, weights: Tensor | None) -> None:
        mask = scores.mask
        self.meter.add(tokens=mask.sum(), loss=losses.sum(), nll=-(scores.nmt * mask).sum())
        if scores.lm is not None:
            cbmi = scores.cbmi() * mask
            self.meter.add(lm_nll=-(scores.lm * mask).sum(), cbmi=cbmi.sum(), cbmi_squared=(cbmi**2).sum())
        if weights is not None:
            weights = weights.detach() * mask
            zeros = ((weights == 0) & mask).sum()
            self.meter.add(weight=weights.sum(), weight_squared=(weights**2).sum(), zeros=zeros)

    def _draw_dropout(self, network: str, at: tuple[int, int]) -> None:
        torch.manual_seed(seed_for(self.seed, network, *at, self.world.rank))

    def _autocast(self):
        enabled = self.precision != torch.float32
        return torch.autocast(self.world.device.type, self.precision, enabled=enabled)
