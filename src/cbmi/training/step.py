"""One training step: batches to losses to gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbmi.model.distribution import States, keep_states
from cbmi.model.head import token_log_probabilities
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.loss import head_for, token_losses
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.networks import seed_for
from cbmi.training.part import Part, dropout_samples, token_scores
from cbmi.training.supply import Supply
from cbmi.training.world import World


@dataclass
class Stepper:
    """What a stage's steps have in common."""

    objective: Objective
    translator: Learner
    language_model: Learner | None  # where it learns in this stage
    supply: Supply
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
            lm, states = self._language_model(part, tokens, (number, i), last)
            self._translator(part, lm, states, tokens, (number, i), last)
        norms = {"grad_norm": self.translator.step(schedule_step)}
        if self.language_model:
            norms["lm_grad_norm"] = self.language_model.step(schedule_step)
        return norms

    def _language_model(
        self, part: Part, tokens: int, at: tuple[int, int], last: bool
    ) -> tuple[Tensor | None, States | None]:
        """log p_LM of the gold tokens, detached, and what gives the model's whole distributions; where it learns, its
        gradient is added on the way."""
        gold = part.target.ids
        if self.supply.frozen is not None:
            with torch.no_grad(), self._autocast():
                states = self.supply.frozen(part.inputs, gold, head=keep_states)
                return token_log_probabilities(*states, gold)[0], states
        if self.language_model is None:
            return None, None
        self._draw_dropout("language model", at)
        with self.language_model.unsynchronised(not last), self._autocast():
            log_p, mean, hidden = self.language_model.run(part.inputs, gold, head=_scores_and_hidden)
        scores = self._scores(part, log_p, mean, None, at)
        loss = (scores.cross_entropy(self.smoothing) * part.mask).sum() / tokens
        states = States(hidden, self.language_model.network.output_weight.detach())
        self.language_model.backward(loss * self.world.size, last)
        return log_p.detach(), states

    def _translator(
        self, part: Part, lm: Tensor | None, states: States | None, tokens: int, at: tuple[int, int], last: bool
    ) -> None:
        samples = self._samples(part, at)
        head = head_for(self.objective, self.smoothing, states, self._teacher(part))
        self._draw_dropout("translator", at)
        with self.translator.unsynchronised(not last), self._autocast():
            gold, mean, *term = self.translator.run(part.source, part.inputs, part.target.ids, head=head)
        scores = self._scores(part, gold, mean, lm, at, samples)
        losses, weights = token_losses(self.objective, scores, self.smoothing, *term)
        self.translator.backward(losses.sum() / tokens * self.world.size, last)
        self._measure(scores, losses, weights)

    def _samples(self, part: Part, at: tuple[int, int]) -> Tensor | None:
        if "samples" not in self.objective.needs:
            return None
        draws = range(self.objective.samples)
        with self._autocast():
            seeds = (seed_for(self.seed, f"sample {draw}", *at, self.world.rank) for draw in draws)
            return dropout_samples(self.translator.network, part, seeds)

    def _teacher(self, part: Part) -> States | None:
        if self.supply.teacher is None:
            return None
        with torch.no_grad(), self._autocast():
            return self.supply.teacher(part.source, part.inputs, part.target.ids, head=keep_states)

    def _scores(
        self,
        part: Part,
        nmt: Tensor,
        mean: Tensor,
        lm: Tensor | None,
        at: tuple[int, int],
        samples: Tensor | None = None,
    ) -> TokenScores:
        seed = seed_for(self.seed, "objective", *at)
        return token_scores(part, self.supply, nmt, mean, lm, ranks=self.world, seed=seed, samples=samples)

    def _measure(self, scores: TokenScores, losses: Tensor, weights: Tensor | None) -> None:
        mask = scores.mask
        self.meter.add(tokens=mask.sum(), loss=losses.sum(), nll=-(scores.nmt * mask).sum())
        if scores.lm is not None:
            cbmi = scores.cbmi() * mask
            self.meter.add(lm_nll=-(scores.lm * mask).sum(), cbmi=cbmi.sum(), cbmi_squared=(cbmi**2).sum())
        if weights is not None:
            weights = weights.detach().double() * mask
            zeros = ((weights == 0) & mask).sum()
            self.meter.add(weight=weights.sum(), weight_squared=(weights**2).sum(), zeros=zeros)
            self.meter.sample(weights, mask)

    def _draw_dropout(self, network: str, at: tuple[int, int]) -> None:
        torch.manual_seed(seed_for(self.seed, network, *at, self.world.rank))

    def _autocast(self):
        enabled = self.precision != torch.float32
        return torch.autocast(self.world.device.type, self.precision, enabled=enabled)


def _scores_and_hidden(hidden: Tensor, weight: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The language model's head: as ever, and the hidden states, detached."""
    return *token_log_probabilities(hidden, weight, gold), hidden.detach()
