"""A trained run, ready to translate, to score and to weight: what `cbmi.load` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cbmi.data.text import pair_files
from cbmi.data.vocabulary import BOS
from cbmi.decoding import Fusion, Hypothesis, Sampling, SearchSettings, translate_ids
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.errors import UserError
from cbmi.files import read_json
from cbmi.inference.base import Model, beam_width
from cbmi.model import LanguageModel, Packed, Translator, shift_right
from cbmi.model.fusion import GoldScores, gold_scores
from cbmi.training import checkpoint as store
from cbmi.training.belonging import check_belongs
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import RunDirectory
from cbmi.training.validation import SPECIAL
from cbmi.training.world import choose_device, choose_precision

Network = TypeVar("Network", Translator, LanguageModel)


class TrainedModel(Model):
    """A run's networks and vocabularies.

    >>> model = cbmi.load("runs/mine")  # doctest: +SKIP
    >>> model.translate(["A sentence."])  # doctest: +SKIP
    """

    language_model_remedy = "train one with language_model: train"

    def __init__(
        self,
        path: str | Path,
        checkpoint: str | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        """`checkpoint`: a folder of the run's checkpoints to use instead of the best."""
        self.run = RunDirectory(path)
        self.path = self.run.path
        self.config = self.run.config()
        self.languages = (self.config.data.source, self.config.data.target)
        self.folder = self._checkpoint_folder(checkpoint)
        self.source, self.target = self.run.vocabularies()
        state = store.read_state(self.folder)
        check_belongs(self.run, self.config, state.made_with, self.folder, data=False)
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)
        sizes = (len(self.source), len(self.target))
        self._check_size(sizes)
        self.translator = self._loaded(new_translator(self.config, sizes), store.TRANSLATOR)
        self._language_model: LanguageModel | None = None
        self.fusion = Fusion(self.language_model(), state.fusion) if state.fusion else None

    def __repr__(self) -> str:
        data = self.config.data
        millions = sum(p.numel() for p in self.translator.parameters()) / 1e6
        precision = str(self.precision).removeprefix("torch.")
        return (
            f"<cbmi.TrainedModel {data.source}→{data.target} from {self.run.path}, "
            f"checkpoint {self.folder.name}, {millions:.1f} million weights, {precision} on "
            f"{self.device}>"
        )

    def _checkpoint_folder(self, checkpoint: str | None) -> Path:
        run = self.run
        folder = run.checkpoints / checkpoint if checkpoint else run.best
        if folder.exists():
            return folder.resolve()
        if not run.begun:
            raise UserError(
                f"{run.path}: this run has no checkpoint yet; train it first (cbmi train)."
            )
        if not checkpoint:
            raise UserError(f"{folder}: its checkpoint is missing; cbmi train chooses another.")
        names = [path.name for path in run.checkpoints.glob("*") if not path.name.startswith(".")]
        known = ", ".join(sorted(names)) or "none"
        raise UserError(f"{folder}: there is no such checkpoint (existing: {known}).")

    def _loaded(self, network: Network, name: str) -> Network:
        problem = store.damage(self.folder, [name])
        if problem:
            raise UserError(f"{self.folder}: {problem}; choose another checkpoint.")
        tensors = store.require_tensors(self.folder, name)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise UserError(
                f"{self.folder}: {name}.safetensors has weights that are NaN or infinite; choose "
                "another checkpoint."
            )
        store.load_weights(network, tensors, self.folder)
        return network.to(self.device, self.precision).eval().requires_grad_(False)

    def _check_size(self, sizes: tuple[int, int]) -> None:
        """Refuse a config.yaml of a model that the weights are not of, before it is allocated."""
        shapes = store.shapes(self.folder, store.TRANSLATOR)
        model = self.config.model
        fits = model.encoder_layers + model.decoder_layers <= len(shapes)
        if fits:
            with torch.device("meta"):  # shapes without memory
                network = new_translator(self.config, sizes)
            wanted = {name: tuple(one.shape) for name, one in store.weights_of(network).items()}
            fits = wanted == shapes
        if not fits:
            raise UserError(
                f"{self.run.config_file}: its model, or the vocabulary, is not that of the weights "
                f"in {self.folder}."
            )

    @property
    def has_language_model(self) -> bool:
        """Whether a language model was trained beside the translator."""
        return (self.folder / f"{store.LANGUAGE_MODEL}.safetensors").exists()

    def language_model(self) -> LanguageModel:
        """The language model that was trained beside the translator."""
        if self._language_model is None:
            if not self.has_language_model:
                raise UserError(
                    f"{self.run.path} has no language model: {self.language_model_remedy}."
                )
            network = new_language_model(self.config, len(self.target))
            self._language_model = self._loaded(network, store.LANGUAGE_MODEL)
        return self._language_model

    def cbmi_settings(self) -> dict[str, Any]:
        return self.config.objective("cbmi")

    def digests(self) -> list[str | None]:
        sums = read_json(self.folder / "manifest.json")
        return [
            sums.get(f"{name}.safetensors") for name in (store.TRANSLATOR, store.LANGUAGE_MODEL)
        ]

    @torch.inference_mode()
    def token_scores(self, source: Packed, target: Packed) -> GoldScores:
        language_model = self.language_model() if self.has_language_model else None
        return self.gold_scores(language_model, source, shift_right(target, BOS), target.ids)

    def gold_scores(
        self, language_model: LanguageModel | None, source: Packed, inputs: Packed, gold: Tensor
    ) -> GoldScores:
        """Scores of the gold tokens; fused if the run is."""
        kind = None
        if self.fusion:
            kind = self.fusion.kind
            language_model = language_model or self.fusion.language_model
        return gold_scores(self.translator, language_model, source, inputs, gold, kind)

    def hypotheses(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: int = 1,
        sampling: Sampling | None = None,
        first_number: int = 0,
        advance: Advance = ignore_progress,
    ) -> list[list[Hypothesis]]:
        settings = SearchSettings(
            SPECIAL,
            beam_width(beam, nbest, sampling),
            length_penalty,
            nbest,
            self.fusion,
            sampling,
        )
        filled = [number for number, line in enumerate(lines) if line.strip()]
        sentences = self.encode(self.source, [lines[number] for number in filled])
        numbers = [first_number + number for number in filled]
        found = translate_ids(
            self.translator, sentences, settings, numbers=numbers, advance=advance
        )
        results: list[list[Hypothesis]] = [[] for _ in lines]
        for number, best in zip(filled, found, strict=True):
            results[number] = best
        advance(len(lines) - len(filled))
        return results

    def weights(
        self,
        objective: str = "cbmi",
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        **settings: Any,
    ) -> Iterator[np.ndarray]:
        """The weight that an objective gives to every token of the run's training text.

        `source` and `target` are aligned files of another text, or `source` alone holds both sides:
        its weights are those that it would have as the training text. Yields one array per line: a
        value per target piece, end of sentence included, or the single value 1 for a line that
        preparation leaves out. Settings that are not given are those of the run's last stage with
        that objective.
        """
        from cbmi.inference.weights import text_weights

        files = None
        if source is not None:
            files = pair_files(str(source), None if target is None else str(target), "target")
        elif target is not None:
            raise UserError("weights: target: give the source as well.")
        return text_weights(self, objective, settings, files)
