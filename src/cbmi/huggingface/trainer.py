"""Hugging Face's trainers with an adaptive objective in place of cross-entropy.

The loss of a step is sum(w·ell) / (number of its predicted labels), as everywhere in cbmi. If
weights compare sentences, they compare those of the whole step: of all processes, and of all
accumulated micro-batches. These are then scored once more beforehand, with the same dropout.
Evaluation is the stock trainer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer

from cbmi.errors import UserError
from cbmi.huggingface.collator import AdaptiveCollator, decoder_inputs
from cbmi.huggingface.columns import (
    COLUMNS,
    IGNORED,
    LM,
    SOURCE,
    WEIGHTS,
    Batch,
    column_names,
    require_column,
    split,
)
from cbmi.huggingface.inputs import ObjectiveInputs, objective_inputs
from cbmi.huggingface.scores import gold_scores, place_hashes
from cbmi.huggingface.weights import WeightLog, weighted_rows, with_weights_of_file
from cbmi.objectives import NEEDS, Objective, TokenScores, build, name_of
from cbmi.objectives.base import join
from cbmi.objectives.loss import token_losses, weights_together
from cbmi.objectives.ranks import SINGLE_RANK, ProcessGroup, Ranks

# What an objective may need here; the other needs are refused.
PROVIDED = frozenset({"lm", "weights", "frequency", "words"})
DEVICES = ("cpu", "cuda")
# How configs call the coefficient of a router's loss.
ROUTER_LOSSES = ("router_aux_loss_coef", "aux_loss_coef", "moe_loss_weight")


class AdaptiveTrainer(Trainer):
    """`transformers.Trainer` with an objective of cbmi, for decoder-only models.

    `objective`: its name, or a mapping with its settings, as a stage of a run file has it. Batches
    come from `AdaptiveCollator`. Objectives that need a language model need the dataset's column
    that `LanguageModelScores` adds.
    """

    adaptive_objective: Objective  # `objective` is what a search for hyperparameters sets

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *,
        objective: str | Mapping[str, Any] | Objective,
        **others: Any,
    ) -> None:
        """`others`: as those of the stock trainer."""
        names = column_names(train_dataset) or []
        self.adaptive_objective = _objective(objective, has_weights=WEIGHTS in names)
        _refuse_unfit(args, data_collator, others)
        if "weights" in self.adaptive_objective.needs() and train_dataset is not None:
            train_dataset = with_weights_of_file(train_dataset, self.adaptive_objective)
        super().__init__(model, args, data_collator, train_dataset, **others)
        self._refuse_unfit_processes()
        self._refuse_unfit_model()
        if self.args.n_gpu > 1:
            raise UserError(
                "one process with several GPUs (DataParallel) is not supported: start one process "
                "per GPU with torchrun, or choose a GPU with CUDA_VISIBLE_DEVICES."
            )
        if self.args.device.type not in DEVICES:
            raise UserError(
                f"{self.args.device.type}: weights are computed on a CPU or a CUDA GPU only; set "
                "use_cpu=True."
            )
        collator = self.data_collator
        if self._needed_columns() and collator.__module__.startswith("transformers."):
            raise UserError(
                f"data_collator: {getattr(collator, '__name__', type(collator).__name__)} knows "
                f"no column '{self._needed_columns()[0]}'; give AdaptiveCollator."
            )
        self._is_causal = not self.model.config.is_encoder_decoder  # type: ignore[union-attr]
        if isinstance(collator, AdaptiveCollator) and (collator.model is None) != self._is_causal:
            raise UserError(
                "data_collator: give AdaptiveCollator the model, since it has an encoder "
                "(model=model)."
            )
        if self.train_dataset is not None:
            self._check_columns(self.train_dataset)
        self._ranks = ProcessGroup(self.args.process_index, self.args.world_size, self.args.device)
        self.compute_loss_func = self._adaptive_loss
        self._inputs: ObjectiveInputs | None = None  # made when first needed
        self._inputs_of: Any = None  # the dataset that they were made of
        self._columns: dict[str, Tensor] = {}  # of the micro-batch whose loss is computed
        self._accumulated: list[Any] = []  # the step's micro-batches, if there are several
        self._known_weights: list[Tensor] = []  # of the step's micro-batches that are left
        self._weight_log = WeightLog()

    def token_weights(self, dataset: Any) -> Any:
        """The rows as lines of `cbmi score`: source, target, pieces, log p and weights.

        The model is used as it is now, without dropout. Rows are weighted in their order, as many
        together as in a step of training. `cbmi inspect` shows the result.
        """
        self._check_columns(dataset)
        # What it really is: `auto_find_batch_size` may have made it smaller.
        step = self._train_batch_size * self.args.gradient_accumulation_steps
        return weighted_rows(self, dataset, step * self.args.world_size)

    def _check_columns(self, dataset: Any) -> None:
        for name in ("input_ids", "labels"):
            require_column(dataset, name, "training")
        for name in self._needed_columns():
            require_column(dataset, name, f"objective '{name_of(self.adaptive_objective)}'")

    def _needed_columns(self) -> list[str]:
        needs = self.adaptive_objective.needs()
        return [name for need, name in (("lm", LM), ("weights", WEIGHTS)) if need in needs]

    def _refuse_unfit_processes(self) -> None:
        """Refuse ways of sharing a step in which the loss would be another one."""
        parallelism = getattr(self.accelerator, "parallelism_config", None)
        for name in ("cp_size", "sp_size", "tp_size"):
            if getattr(parallelism, name, 1) > 1:
                raise UserError(
                    f"parallelism_config.{name}: sentences that several processes share cannot be "
                    "weighted; set it to 1."
                )
        if self.args.world_size > 1 and not self.args.average_tokens_across_devices:
            raise UserError(
                "average_tokens_across_devices: without it, the processes' tokens would count "
                "differently; set it to True."
            )

    def _refuse_unfit_model(self) -> None:
        """Refuse a model with a loss of its own beside that of the labels."""
        config: Any = self.model.config  # type: ignore[union-attr]
        if any(_has_router_loss(one) for one in (config, config.get_text_config())):
            raise UserError(
                "output_router_logits: the loss of the model's router would be left out; set it "
                "to False in the model's config."
            )

    # What users and the stock trainer call.

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._weight_log = WeightLog()
        try:
            return super().train(*args, **kwargs)
        finally:
            # A step may have been broken off.
            self._accumulated = []
            self._known_weights = []

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        known: Any = self._signature_columns
        for name in self._needed_columns():
            if name not in known:
                known.append(name)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Our columns stay in single precision, whatever the model's inputs are turned into."""
        own = {name: inputs[name] for name in COLUMNS if name in inputs}
        prepared = super()._prepare_inputs(
            {name: value for name, value in inputs.items() if name not in own}
        )
        for name, value in own.items():
            prepared[name] = value.to(self.args.device)
        return prepared

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._accumulated = batches if len(batches) > 1 else []
        self._known_weights = []
        return batches, items

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if self.compute_loss_func is not None:
            together = self.adaptive_objective.weighs_together()
            if together and self._accumulated and not self._known_weights:
                self._known_weights = self._weights_of_step(model)
            inputs, self._columns = self._split(inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def prediction_step(self, model: nn.Module, inputs: Batch, *args: Any, **kwargs: Any) -> Any:
        with self._stock_loss():
            return super().prediction_step(model, split(inputs)[0], *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = {**logs, **self._weight_log.summary()}
        super().log(logs, *args, **kwargs)

    def _split(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As `split`; a decoder's inputs are made of the labels where they are missing.

        Without labels, which are ours, some models would make them of the source.
        """
        inputs, columns = split(batch)
        if "labels" not in inputs:
            raise UserError("training needs the column 'labels', which the batch does not have.")
        given = {"decoder_input_ids", "decoder_inputs_embeds"} & set(inputs)
        if not self._is_causal and not given:
            inputs["decoder_input_ids"] = decoder_inputs(self.model, inputs["labels"])
        return inputs, columns

    @contextmanager
    def _stock_loss(self) -> Iterator[None]:
        own = self.compute_loss_func
        self.compute_loss_func = None
        try:
            yield
        finally:
            self.compute_loss_func = own

    # The loss.

    def _adaptive_loss(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None
    ) -> Tensor:
        scores = self.token_scores(outputs, labels, self._columns, self._ranks)
        known = self._known_weights.pop(0) if self._known_weights else None
        losses, weights = token_losses(
            self.adaptive_objective, scores, self.args.label_smoothing_factor, weights=known
        )
        if weights is not None:
            self._weight_log.add(weights, scores.mask)
        tokens = scores.mask.sum() if num_items_in_batch is None else num_items_in_batch
        return losses.sum() / tokens

    @torch.no_grad()
    def _weights_of_step(self, model: nn.Module) -> list[Tensor]:
        """The weights of each accumulated micro-batch, in order; random states stay as they were.

        So the passes that follow draw the same dropout.
        """
        device = self.args.device
        gpus = [device] if device.type == "cuda" else []
        scores = []
        with torch.random.fork_rng(gpus):
            for batch in self._accumulated:
                inputs, columns = self._split(self._prepare_inputs(batch))
                labels = inputs.pop("labels")
                scores.append(self.token_scores(model(**inputs), labels, columns, self._ranks))
        self._accumulated = []
        longest = torch.stack([torch.as_tensor(one.longest) for one in scores]).max()
        together = replace(join(scores), longest=longest)
        return list(
            weights_together(self.adaptive_objective, together, [len(one.nmt) for one in scores])
        )

    def token_scores(
        self, outputs: Any, labels: Tensor, columns: Batch, ranks: Ranks
    ) -> TokenScores:
        """Scores of all labels, row after row; those that are not predicted are fillers."""
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        if logits is None:
            raise UserError("the model gave no logits; a fused loss (Liger) cannot be weighted.")
        # Adapters that learn a prompt put it before the tokens.
        logits = logits[:, -labels.shape[1] :]
        if logits.shape[:2] != labels.shape:
            raise UserError(
                f"the model gave logits of shape {tuple(logits.shape[:2])} for labels of shape "
                f"{tuple(labels.shape)}; use AdaptiveCollator as the data_collator."
            )
        needs = self.adaptive_objective.needs()
        together = self.adaptive_objective.weighs_together()
        if self._is_causal:
            # The logits at a place are those of the next label.
            labels = torch.cat([labels[:, 1:], labels.new_full((len(labels), 1), IGNORED)], dim=1)
        is_predicted = labels != IGNORED
        gold = labels.clamp(min=0).flatten()
        nmt, mean = gold_scores(logits.flatten(0, 1), gold)
        sentences = len(labels)
        sentence = torch.arange(sentences, device=labels.device).repeat_interleave(labels.shape[1])
        # Fillers are a sentence of their own, without tokens.
        sentence = torch.where(is_predicted.flatten(), sentence, sentences)
        inputs = self._objective_inputs(logits.shape[-1], labels.device)
        places = place_hashes([columns[SOURCE], labels], is_predicted)
        return TokenScores(
            nmt=nmt,
            mean=mean,
            lm=self._column(columns, LM) if "lm" in needs else None,
            mask=is_predicted.flatten(),
            sentence=sentence,
            sentences=sentences + 1,
            longest=-(ranks if together else SINGLE_RANK).min(-is_predicted.sum(1).max()),
            gold=gold if inputs.ids is None else inputs.ids[gold],
            corpus_index=places.flatten(),
            ranks=ranks,
            seed=self.args.seed + (self.state.global_step << 20),
            frequency=inputs.frequency,
            boundaries=inputs.boundaries,
            given=self._column(columns, WEIGHTS) if "weights" in needs else None,
        )

    def _column(self, columns: Batch, name: str) -> Tensor:
        """(places,) of a batch's column, in the order of logits."""
        if name not in columns:
            raise UserError(
                f"the batch has no '{name}': use AdaptiveCollator as the data_collator, on a "
                "dataset with that column."
            )
        values: Tensor = columns[name]
        if self._is_causal:
            values = torch.cat([values[:, 1:], values.new_zeros(len(values), 1)], dim=1)
        return values.flatten()

    def _objective_inputs(self, size: int, device: torch.device) -> ObjectiveInputs:
        if self._inputs is None or self._inputs_of is not self.train_dataset:
            self._inputs_of = self.train_dataset
            tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
            self._inputs = objective_inputs(
                self.adaptive_objective, tokenizer, size, self.train_dataset
            ).to(device)
        return self._inputs


class AdaptiveSeq2SeqTrainer(AdaptiveTrainer, Seq2SeqTrainer):
    """`transformers.Seq2SeqTrainer` with an objective of cbmi, for encoder-decoder models."""


def _objective(choice: str | Mapping[str, Any] | Objective, has_weights: bool = False) -> Objective:
    """The objective of that name and settings; refuses one that needs what is not provided.

    has_weights: the dataset has a column of weights, so no file needs to be named.
    """
    if isinstance(choice, Objective):
        objective = choice
    else:
        settings = {"name": choice} if isinstance(choice, str) else choice
        if not isinstance(settings, Mapping) or "name" not in settings:
            raise UserError(
                "objective: give a name, or a mapping with a name, such as {'name': 'cbmi'}, not "
                f"{choice!r:.60}."
            )
        without_file = {"file": ""} if has_weights and settings["name"] == "weights-file" else {}
        objective = build(without_file | dict(settings), "objective")
    if objective.fusion is not None:
        raise UserError(
            "objective: it trains translator and language model as one, which Hugging Face's "
            "trainer does not have; train with cbmi itself, or choose another objective."
        )
    for need in sorted(objective.needs() - PROVIDED):
        raise UserError(
            f"objective: it needs {NEEDS[need]}, which Hugging Face's trainer does not have; train "
            "with cbmi itself, or choose another objective."
        )
    return objective


def _has_router_loss(config: Any) -> bool:
    """Whether a mixture of experts adds a loss, as far as its config tells."""
    if not getattr(config, "output_router_logits", False):
        return False
    named = []
    for one in (config, getattr(config, "ffn_config", None)):
        named += [getattr(one, name) for name in ROUTER_LOSSES if hasattr(one, name)]
    return not named or any(named)


def _refuse_unfit(args: Any, data_collator: Any, others: Mapping[str, Any]) -> None:
    """Refuse what would train something else."""
    if getattr(args, "use_liger_kernel", False):
        raise UserError(
            "use_liger_kernel: its fused loss gives no logits to weight; set it to False."
        )
    if data_collator is None:
        raise UserError(
            "data_collator: give AdaptiveCollator(tokenizer, model=model), or for a decoder-only "
            "model AdaptiveCollator(tokenizer)."
        )
    collator = type(data_collator).__name__
    is_packed = getattr(args, "packing", False) or getattr(args, "padding_free", False)
    if is_packed or collator == "DataCollatorWithFlattening":
        raise UserError(
            "packing: several pairs in a row cannot be told apart; give each pair a row, with "
            "AdaptiveCollator."
        )
    if others.get("compute_loss_func") is not None:
        raise UserError("compute_loss_func: the objective is the loss; leave it out.")
