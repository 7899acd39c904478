"""What every model that translates can do, whatever computes it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch

from cbmi.data.vocabulary import EOS, Vocabulary
from cbmi.decoding import Hypothesis, Sampling
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.errors import UserError
from cbmi.model import Packed
from cbmi.model.fusion import GoldScores
from cbmi.progress import say

if TYPE_CHECKING:
    from cbmi.inference.scoring import ScoredPair

LONGEST_LINE = 1024  # pieces; a longer line is truncated, and counted
BEAM = 4  # width of the beam if none is given
WINDOW = 5_000  # lines read, sorted by length and translated at a time


@dataclass(frozen=True)
class Translation:
    """A translation with its scores."""

    text: str
    score: float  # log-probability / length^length_penalty
    log_probability: float


class Model(ABC):
    """A translator with its vocabularies: of a run directory, or exported from one."""

    path: Path
    languages: tuple[str, str]  # codes of source and target
    source: Vocabulary
    target: Vocabulary
    device: torch.device
    language_model_remedy: ClassVar[str]  # what to do if there is no language model
    truncated: int = 0  # lines truncated at LONGEST_LINE pieces so far

    @property
    @abstractmethod
    def has_language_model(self) -> bool:
        """Whether there is a language model of the target side, which CBMI needs."""

    @abstractmethod
    def cbmi_settings(self) -> dict[str, Any]:
        """The objective `cbmi` as it was trained with; its name alone if it was not."""

    @abstractmethod
    def digests(self) -> list[str | None]:
        """Of the weights of translator and language model."""

    @abstractmethod
    def token_scores(self, source: Packed, target: Packed) -> GoldScores:
        """log p of the target's tokens, and log p_LM if there is a language model."""

    @abstractmethod
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
        if not (math.isfinite(length_penalty) and length_penalty >= 0):
            raise UserError(
                f"length_penalty is {length_penalty}, but should be a finite number of at least 0."
            )
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


def beam_width(beam: int | None, nbest: int, sampling: Sampling | None) -> int:
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
