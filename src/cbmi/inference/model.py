"""A trained run, ready to translate, to score and to weight: what `cbmi.load` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from cbmi.data.vocabulary import EOS, Vocabulary
from cbmi.decoding import Fusion, Hypothesis, Sampling, SearchSettings, translate_ids
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.errors import UserError
from cbmi.model import LanguageModel, Packed, Translator
from cbmi.model.fusion import GoldScores, gold_scores
from cbmi.progress import say
from cbmi.training import checkpoint as store
from cbmi.training.belonging import check_belongs
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import RunDirectory
from cbmi.training.validation import SPECIAL
from cbmi.training.world import choose_device, choose_precision

if TYPE_CHECKING:
    from cbmi.inference.scoring import ScoredPair

LONGEST_LINE = 1024  # pieces; a longer line is truncated, and counted
BEAM = 4  # width of the beam if none is given
WINDOW = 5_000  # lines read, sorted by length and translated at a time
Network = TypeVar("Network", Translator, LanguageModel)


@dataclass(frozen=True)
class Translation:
    """A translation with its scores."""

    text: str
    score: float  # log-probability / length^length_penalty
    log_probability: float


class TrainedModel:
    """A run's networks and vocabularies.

    >>> model = cbmi.load("runs/mine")  # doctest: +SKIP
    >>> model.translate(["A sentence."])  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        checkpoint: str | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        """`checkpoint`: a folder of the run's checkpoints to use instead of the best."""
        self.run = RunDirectory(path)
        self.config = self.run.config()
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
        self.truncated = 0  # lines truncated at LONGEST_LINE pieces so far

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
                    f"{self.run.path} has no language model: train one with language_model: train."
                )
            network = new_language_model(self.config, len(self.target))
            self._language_model = self._loaded(network, store.LANGUAGE_MODEL)
        return self._language_model

    def gold_scores(
        self, language_model: LanguageModel | None, source: Packed, inputs: Packed, gold: Tensor
    ) -> GoldScores:
        """Scores of the gold tokens; fused if the run is."""
        kind = None
        if self.fusion:
            kind = self.fusion.kind
            language_model = language_model or self.fusion.language_model
        return gold_scores(self.translator, language_model, source, inputs, gold, kind)

    def encode(self, vocabulary: Vocabulary, lines: Sequence[str]) -> list[list[int]]:
        """Ids of lines; one of over `LONGEST_LINE` pieces is truncated, and counted."""
        sentences = []
        for ids in vocabulary.encode(lines):
            if len(ids) > LONGEST_LINE:
                self.truncated += 1
                ids = [*ids[: LONGEST_LINE - 1], EOS]
            sentences.append(ids)
        return sentences

    def report_truncated(self) -> None:
        if self.truncated:
            say(truncation_note(self.truncated))

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
        """The `nbest` best translations of each line, as ids with scores; none if it is empty.

        With `sampling`, `nbest` samples of each line instead. They depend on the line's number;
        `first_number` is that of the first line.
        """
        settings = SearchSettings(
            SPECIAL,
            _beam_width(beam, nbest, sampling),
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

    @overload
    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: None = None,
        sampling: Sampling | None = None,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: int,
        sampling: Sampling | None = None,
    ) -> list[list[Translation]]: ...

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: int | None = None,
        sampling: Sampling | None = None,
    ) -> list[str] | list[list[Translation]]:
        """Translate lines of text, in order.

        Returns one text per line; an empty line stays empty. With `nbest`, returns for each line
        the n best translations with their scores, best first; none for an empty line. A line of
        over `LONGEST_LINE` pieces is truncated, and counted in `truncated`. The beam is `BEAM`
        wide by default. With `sampling` there is no beam: translations are drawn at random, and
        `nbest` of them come in the order drawn.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes an iterable of lines; for one line, translate([line])")
        several = self.translations(
            lines,
            beam=beam,
            length_penalty=length_penalty,
            nbest=1 if nbest is None else nbest,
            sampling=sampling,
        )
        if nbest is not None:
            return list(several)
        return [found[0].text if found else "" for found in several]

    def translations(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: int = 1,
        sampling: Sampling | None = None,
        window: int = WINDOW,
        advance: Advance = ignore_progress,
    ) -> Iterator[list[Translation]]:
        """The `nbest` best translations of each line, as a stream: `window` lines at a time.

        With `sampling`, `nbest` samples of each line; they do not depend on the window.
        """
        remaining = iter(lines)
        lines_before = 0
        while chunk := list(islice(remaining, window)):
            found = self.hypotheses(
                chunk,
                beam=beam,
                length_penalty=length_penalty,
                nbest=nbest,
                sampling=sampling,
                first_number=lines_before,
                advance=advance,
            )
            lines_before += len(chunk)
            for hypotheses in found:
                yield [self._translation(hypothesis) for hypothesis in hypotheses]

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text = self.target.decode(hypothesis.ids)
        return Translation(text, hypothesis.score, hypothesis.log_probability)

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[ScoredPair]:
        """Say, token by token, how much each target of (source, target) depends on its source.

        The sentence weights are those that the pairs would get as one mini-batch. Without a
        language model, there are neither CBMI nor weights.
        """
        from cbmi.inference.scoring import score_pairs

        return score_pairs(self, list(pairs))

    def weights(self, objective: str = "cbmi", **settings: Any) -> Iterator[np.ndarray]:
        """The weight that an objective gives to every token of the run's training text.

        Yields one array per line of the text: a value per target piece, end of sentence included,
        or the single value 1 for a line that preparation left out. Settings that are not given are
        those of the run's last stage with that objective.
        """
        from cbmi.inference.weights import training_weights

        return training_weights(self, objective, settings)


def _beam_width(beam: int | None, nbest: int, sampling: Sampling | None) -> int:
    """How many hypotheses to keep, after checking that this goes with the other settings."""
    if sampling is not None:
        if beam not in (None, 1):
            raise UserError(f"beam is {beam}, but sampling has no beam: leave one of them out.")
        if nbest < 1:
            raise UserError(f"nbest is {nbest}, but should be at least 1.")
        return 1
    width = BEAM if beam is None else beam
    if not 1 <= nbest <= width:
        raise UserError(f"nbest is {nbest}, but should be between 1 and the beam's width, {width}.")
    return width


def truncation_note(count: int) -> str:
    """How many lines were truncated, as a sentence."""
    lines = "1 line was" if count == 1 else f"{count:,} lines were"
    return f"{lines} over {LONGEST_LINE} pieces long and truncated there."
