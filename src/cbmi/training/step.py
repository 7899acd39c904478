"""One training step: batches to losses to gradients to new weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor, nn

from cbmi.model.distribution import States, keep_states
from cbmi.model.head import token_log_probabilities
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.base import join
from cbmi.objectives.loss import head_for, token_losses
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.part import Part, dropout_samples, token_scores
from cbmi.training.sharding import is_sharded
from cbmi.training.supply import Supply
from cbmi.training.world import World

# What the language model says of a part: log p of the gold tokens, and what gives its whole distributions.
Scored = tuple[Tensor | None, States | None]


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
    head_tokens: int = 0  # whose logits are made at a time; 0: as many as is fastest
    norms: dict[str, Tensor] = field(default_factory=dict)  # of the gradients in the latest step

    def schedule(self, step: int) -> None:
        """Set the learning rates of the coming step."""
        for learner in self._learners().values():
            learner.schedule(step)

    def compute(self, parts: list[Part]) -> None:
        """One update of every network that learns. All that changes from step to step is in the parts and in memory
        on the device: the computation can be recorded and replayed."""
        ends = [part is parts[-1] for part in parts]
        models: Iterable[Scored] = map(self._language_model, parts, ends)  # each when its turn comes
        weights: Iterable[Tensor | None] = repeat(None)
        if len(parts) > 1 and self.objective.weighs_together:
            models = list(models)
            weights = self._weights_of_all(parts, models)
        for part, model, known, last in zip(parts, models, weights, ends, strict=False):
            self._translator(part, model, known, last)
        self.norms = {name: learner.update() for name, learner in self._learners().items()}

    def forget_gradients(self) -> None:
        """After a computation that was broken off."""
        for learner in self._learners().values():
            learner.optimizer.zero_grad(set_to_none=True)

    def _learners(self) -> dict[str, Learner]:
        """By the names of their gradients' norms."""
        learners = {"grad_norm": self.translator, "lm_grad_norm": self.language_model}
        return {name: learner for name, learner in learners.items() if learner}

    def _language_model(self, part: Part, last: bool) -> Scored:
        """log p_LM of the gold tokens, detached, and what gives the model's whole distributions; where it learns, its
        gradient is added on the way."""
        gold = part.target.ids
        if "lm" in part.numbers:
            return part.numbers["lm"], None
        if self.supply.frozen is not None:
            with torch.no_grad(), self._autocast():
                states = self.supply.frozen(part.inputs, gold, head=keep_states)
                return token_log_probabilities(*states, gold, self.head_tokens or None)[0], states
        if self.language_model is None:
            return None, None
        self.language_model.network.draws.seed = part.seed
        with self.language_model.unsynchronised(not last), self._autocast():
            log_p, mean, hidden = self.language_model.run(part.inputs, gold, head=self._scores_and_hidden)
        scores = token_scores(part, self.supply, log_p, mean, None)
        loss = (scores.cross_entropy(self.smoothing) * part.mask).sum() / part.tokens
        weight = self.language_model.network.output_weight.detach()
        # Spread weights are let go in the backward pass.
        states = States(hidden, weight.clone() if is_sharded(self.language_model.network) else weight)
        self.language_model.backward(loss * self.world.size, last)
        return log_p.detach(), states

    @torch.no_grad()
    def _weights_of_all(self, parts: list[Part], models: list[Scored]) -> tuple[Tensor, ...]:
        """The weights of each part's tokens where they depend on the other parts: one more forward pass, with the
        same draws of dropout."""
        together = zip(parts, models, strict=True)
        network = self.translator.network
        scores = [self._scores(network, part, model, self._samples(part))[0] for part, model in together]
        return self.objective.weights(join(scores)).split([len(part.mask) for part in parts])

    def _translator(self, part: Part, model: Scored, known: Tensor | None, last: bool) -> None:
        samples = self._samples(part) if known is None else None
        with self.translator.unsynchronised(not last):
            scores, term = self._scores(self.translator.run, part, model, samples)
        losses, weights = token_losses(self.objective, scores, self.smoothing, *term, weights=known)
        self.translator.backward(losses.sum() / part.tokens * self.world.size, last)
        self._measure(scores, losses, weights)

    def _scores(
        self, translator: nn.Module, part: Part, model: Scored, samples: Tensor | None
    ) -> tuple[TokenScores, list[Tensor]]:
        """A part's scores, and the objective's term where it has one."""
        lm, states = model
        head = head_for(self.objective, self.smoothing, states, self._teacher(part), self.head_tokens or None)
        self.translator.network.draws.seed = part.seed
        with self._autocast():
            gold, mean, *term = translator(part.source, part.inputs, part.target.ids, head=head)
        return token_scores(part, self.supply, gold, mean, lm, ranks=self.world, samples=samples), term

    def _samples(self, part: Part) -> Tensor | None:
        if "samples" not in self.objective.needs:
            return None
        with self._autocast():
            return dropout_samples(self.translator.network, part, self.objective.samples)

    def _teacher(self, part: Part) -> States | None:
        if self.supply.teacher is None:
            return None
        with torch.no_grad(), self._autocast():
            return self.supply.teacher(part.source, part.inputs, part.target.ids, head=keep_states)

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

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.world.device.type, self.precision, enabled=self.precision != torch.float32)

    def _scores_and_hidden(self, hidden: Tensor, weight: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The language model's head: as ever, and the hidden states, detached."""
        return *token_log_probabilities(hidden, weight, gold, self.head_tokens or None), hidden.detach()
