"""One training step: micro-batches to losses to gradients to new weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cbmi.model.distribution import States, keep_states
from cbmi.model.head import HeadOutput, token_log_probabilities
from cbmi.model.packed import twice
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.base import join
from cbmi.objectives.heads import head_for
from cbmi.objectives.loss import token_losses, weights_together
from cbmi.training.batching.micro_batch import MicroBatch
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.scores import dropout_samples, token_scores
from cbmi.training.sharding import is_sharded
from cbmi.training.stage_inputs import StageInputs, dropout_sample_count
from cbmi.training.world import World


class LanguageModelScores(NamedTuple):
    """The language model's scores of a micro-batch; both None if the stage has none."""

    log_p: Tensor | None = None  # (tokens,) log p_LM of the gold tokens, detached
    states: States | None = None  # its whole distributions, before they are computed


class TranslatorScores(NamedTuple):
    scores: TokenScores
    term: Tensor | None  # (tokens,) the objective's extra loss, where it has one


class _LanguageModelOutput(NamedTuple):
    log_p: Tensor
    mean_log_p: Tensor
    hidden: Tensor  # detached


@dataclass
class Stepper:
    """Computes the steps of a stage: scores, weights, backward passes, updates."""

    objective: Objective
    translator: Learner
    language_model: Learner | None  # where it is trained in this stage
    stage_inputs: StageInputs
    smoothing: float
    precision: torch.dtype
    world: World
    meter: Meter
    r_drop: float = 0.0  # strength of the divergence between two passes; 0: one pass
    head_tokens: int = 0  # whose logits are held at a time; 0: as many as is fastest
    grad_norms: dict[str, Tensor] = field(default_factory=dict)  # of the latest step

    def prepare_update(self, learning_rate: float) -> None:
        """Before the coming step."""
        for learner in self._learners().values():
            learner.prepare_update(learning_rate)

    def compute(self, micro_batches: Sequence[MicroBatch]) -> None:
        """One update of every network that is trained, in the order of events.

        All that changes from step to step lies in the micro-batches and in memory on the device, so
        the computation can be recorded and replayed.
        """
        last = len(micro_batches) - 1
        if last > 0 and self.objective.weighs_together():
            # Weights depend on the whole step: score all of it before the first backward pass.
            lm_scores = []
            for number, micro_batch in enumerate(micro_batches):
                lm_scores.append(self._score_by_language_model(micro_batch, number == last))
            weights = self._weights_of_step(micro_batches, lm_scores)
            for number, micro_batch in enumerate(micro_batches):
                self._train_translator(
                    micro_batch, lm_scores[number], weights[number], number == last
                )
        else:
            for number, micro_batch in enumerate(micro_batches):
                lm_score = self._score_by_language_model(micro_batch, number == last)
                self._train_translator(micro_batch, lm_score, None, number == last)
        self._update()

    def discard_gradients(self) -> None:
        """After a computation that failed."""
        for learner in self._learners().values():
            learner.optimizer.zero_grad(set_to_none=True)

    def _learners(self) -> dict[str, Learner]:
        """By the names of their gradients' norms in the log."""
        learners = {"grad_norm": self.translator}
        if self.language_model is not None:
            learners["lm_grad_norm"] = self.language_model
        return learners

    def _score_by_language_model(
        self, micro_batch: MicroBatch, is_last: bool
    ) -> LanguageModelScores:
        """log p_LM of the gold tokens. Where the model is trained, this runs its backward pass."""
        gold = micro_batch.target.ids
        if "lm" in micro_batch.token_values:
            return LanguageModelScores(micro_batch.token_values["lm"])
        if self.stage_inputs.frozen is not None:
            network = self.stage_inputs.frozen
            network.runtime.seed = micro_batch.dropout_seed  # read where its dropout is on
            with torch.no_grad(), self._autocast():
                states: States = network(micro_batch.inputs, gold, head=keep_states)
                return LanguageModelScores(states.log_probabilities(gold, self._chunk()), states)
        if self.language_model is not None:
            return self._train_language_model(self.language_model, micro_batch, is_last)
        return LanguageModelScores()

    def _train_language_model(
        self, learner: Learner, micro_batch: MicroBatch, is_last: bool
    ) -> LanguageModelScores:
        """Add the gradient of its cross-entropy; its loss never reaches the translator."""
        gold = micro_batch.target.ids
        network = learner.network
        network.runtime.seed = micro_batch.dropout_seed
        head = partial(_log_probabilities_and_hidden, chunk=self._chunk())
        with learner.gradient_sync(is_last), self._autocast():
            output: _LanguageModelOutput = learner.module(micro_batch.inputs, gold, head=head)
        scores = token_scores(micro_batch, nmt=output.log_p, mean=output.mean_log_p, lm=None)
        losses = scores.cross_entropy(self.smoothing) * micro_batch.mask
        # The normaliser is the number of real tokens of the whole step, on all ranks. Gradients are
        # averaged over the ranks, so each rank's loss is multiplied by their number.
        loss = losses.sum() / micro_batch.step_tokens
        weight = network.output_weight.detach()
        if is_sharded(network):
            weight = weight.clone()  # gathered weights are freed in the backward pass
        states = States(output.hidden, weight, network.runtime.allow_fused)
        learner.backward(loss * self.world.size, is_last)
        return LanguageModelScores(output.log_p.detach(), states)

    @torch.no_grad()
    def _weights_of_step(
        self, micro_batches: Sequence[MicroBatch], lm_scores: Sequence[LanguageModelScores]
    ) -> tuple[Tensor, ...]:
        """The weights of each micro-batch's tokens, if they depend on the other micro-batches.

        It takes one more forward pass, with the same dropout masks.
        """
        scores = []
        for micro_batch, lm_score in zip(micro_batches, lm_scores, strict=True):
            samples = self._samples(micro_batch)
            network = self.translator.network
            scored = self._score_by_translator(network, micro_batch, lm_score, samples)
            scores.append(scored.scores)
        counts = [len(micro_batch.mask) for micro_batch in micro_batches]
        return weights_together(self.objective, join(scores), counts)

    def _train_translator(
        self,
        micro_batch: MicroBatch,
        lm_score: LanguageModelScores,
        weights: Tensor | None,
        is_last: bool,
    ) -> None:
        """Score, weight, backward; `weights` are those that are known already."""
        samples = self._samples(micro_batch) if weights is None else None
        module = self.translator.module
        with self.translator.gradient_sync(is_last):
            scored = self._score_by_translator(module, micro_batch, lm_score, samples)
        weighted = token_losses(self.objective, scored.scores, self.smoothing, scored.term, weights)
        # Normaliser and number of ranks: as for the language model.
        loss = weighted.losses.sum() / micro_batch.step_tokens
        self.translator.backward(loss * self.world.size, is_last)
        self._measure(scored.scores, weighted.losses, weighted.weights)

    def _score_by_translator(
        self,
        module: nn.Module,
        micro_batch: MicroBatch,
        lm_score: LanguageModelScores,
        samples: Tensor | None,
    ) -> TranslatorScores:
        teacher = self._teacher_states(micro_batch)
        head = head_for(
            self.objective, self.smoothing, lm_score.states, teacher, self._chunk(), self.r_drop
        )
        source = micro_batch.source
        inputs = micro_batch.inputs
        if self.r_drop:
            # Both passes in one: dropout goes by the row, so the second half has its own masks.
            source = twice(source)
            inputs = twice(inputs)
        self.translator.network.runtime.seed = micro_batch.dropout_seed
        with self._autocast():
            output: HeadOutput = module(source, inputs, micro_batch.target.ids, head=head)
        scores = token_scores(
            micro_batch,
            nmt=output.log_p,
            mean=output.mean_log_p,
            lm=lm_score.log_p,
            frequency=self.stage_inputs.frequency,
            boundaries=self.stage_inputs.boundaries,
            samples=samples,
            ranks=self.world,
        )
        return TranslatorScores(scores, output.term)

    def _samples(self, micro_batch: MicroBatch) -> Tensor | None:
        """(masks, tokens) log p under other dropout masks, if the objective needs them."""
        count = dropout_sample_count(self.objective)
        if not count:
            return None
        with self._autocast():
            return dropout_samples(self.translator.network, micro_batch, count)

    def _teacher_states(self, micro_batch: MicroBatch) -> States | None:
        teacher = self.stage_inputs.teacher
        if teacher is None:
            return None
        with torch.no_grad(), self._autocast():
            states: States = teacher(
                micro_batch.source, micro_batch.inputs, micro_batch.target.ids, head=keep_states
            )
            return states

    def _update(self) -> None:
        self.grad_norms = {name: learner.update() for name, learner in self._learners().items()}

    def _measure(self, scores: TokenScores, losses: Tensor, weights: Tensor | None) -> None:
        """Add to the sums that the log's figures are made of."""
        mask = scores.mask
        self.meter.add(tokens=mask.sum(), loss=losses.sum(), nll=-(scores.nmt * mask).sum())
        if scores.lm is not None:
            cbmi = scores.cbmi() * mask
            self.meter.add(
                lm_nll=-(scores.lm * mask).sum(), cbmi=cbmi.sum(), cbmi_squared=(cbmi**2).sum()
            )
        if weights is not None:
            weights = weights.detach().double() * mask
            zeros = ((weights == 0) & mask).sum()
            self.meter.add(weight=weights.sum(), weight_squared=(weights**2).sum(), zeros=zeros)
            self.meter.sample(weights, mask)

    def _autocast(self) -> torch.autocast:
        half = self.precision != torch.float32
        return torch.autocast(self.world.device.type, self.precision, enabled=half)

    def _chunk(self) -> int | None:
        return self.head_tokens or None


def _log_probabilities_and_hidden(
    hidden: Tensor, weight: Tensor, gold: Tensor, *, chunk: int | None, fused: bool
) -> _LanguageModelOutput:
    """The head of a language model that is trained: its scores, and its hidden states detached."""
    output = token_log_probabilities(hidden, weight, gold, chunk, fused=fused)
    return _LanguageModelOutput(output.log_p, output.mean_log_p, hidden.detach())
