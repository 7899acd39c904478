"""A trained run, ready to translate and to score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from cbmi.data.vocabulary import EOS, Vocabulary
from cbmi.decoding import Fusion, Hypothesis, translate_ids
from cbmi.errors import UserError
from cbmi.model import LanguageModel, Packed, Translator, kernels
from cbmi.model.fusion import gold_scores
from cbmi.progress import say
from cbmi.training import checkpoint as store
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import Run
from cbmi.training.validation import SPECIAL
from cbmi.training.world import choose_device, choose_precision

LONGEST_LINE = 1024  # pieces; a longer line is cut, and counted


class Trained:
    """A run's networks and vocabularies. `cbmi.load("runs/x").translate(["A sentence."])`"""

    def __init__(
        self, path: str | Path, checkpoint: str | None = None, device: str = "auto", precision: str = "auto"
    ) -> None:
        self.run = Run(path)
        self.config = self.run.config()
        self.folder = self._folder(checkpoint)
        self.source, self.target = self.run.vocabularies()
        kernels.use(self.config.compile == "auto")
        self.device = choose_device(device)
        self.precision = choose_precision(precision, self.device)
        self.translator = self._translator()
        fusion = store.read_state(self.folder).fusion
        self.fusion = Fusion(self.language_model(), fusion) if fusion else None
        self.truncated = 0  # lines cut at LONGEST_LINE pieces so far

    def _folder(self, checkpoint: str | None) -> Path:
        folder = self.run.checkpoints / checkpoint if checkpoint else self.run.best
        if not folder.exists():
            if not self.run.begun:
                raise UserError(f"{self.run.path}: this run has no checkpoint yet; train it first (cbmi train).")
            if not checkpoint:
                raise UserError(f"{folder}: its checkpoint is missing; cbmi train chooses another.")
            names = sorted(p.name for p in self.run.checkpoints.glob("*") if not p.name.startswith("."))
            raise UserError(f"{folder}: there is no such checkpoint (there are: {', '.join(names) or 'none'}).")
        return folder.resolve()

    def _translator(self) -> Translator:
        sizes = (len(self.source), len(self.target))
        network = new_translator(self.config.model, sizes, self.config.data.vocabulary.shared)
        return self._loaded(network, store.TRANSLATOR)

    def _loaded(self, network: torch.nn.Module, name: str):
        problem = store.damage(self.folder, [name])
        if problem:
            raise UserError(f"{self.folder}: {problem}; choose another checkpoint.")
        store.load_weights(network, store.load_tensors(self.folder, name), self.folder)
        return network.to(self.device, self.precision).eval().requires_grad_(False)

    def language_model(self) -> LanguageModel:
        """The language model that was trained beside the translator."""
        if not (self.folder / f"{store.LANGUAGE_MODEL}.safetensors").exists():
            raise UserError(f"{self.run.path} has no language model: train one with language_model: train.")
        return self._loaded(new_language_model(self.config.model, len(self.target)), store.LANGUAGE_MODEL)

    def gold_scores(
        self, language_model: LanguageModel | None, source: Packed, inputs: Packed, gold: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(log p of the gold tokens, its mean over the vocabulary, log p_lm or None); fused where the run is."""
        kind = self.fusion.kind if self.fusion else None
        language_model = language_model or (self.fusion.language_model if self.fusion else None)
        return gold_scores(self.translator, language_model, source, inputs, gold, kind)

    def encode(self, vocabulary: Vocabulary, lines: Sequence[str]) -> list[list[int]]:
        """Ids of lines; one of over `LONGEST_LINE` pieces is cut and counted in `truncated`."""
        ids = vocabulary.encode(lines)
        for i, sentence in enumerate(ids):
            if len(sentence) > LONGEST_LINE:
                self.truncated += 1
                ids[i] = [*sentence[: LONGEST_LINE - 1], EOS]
        return ids

    def report_truncated(self) -> None:
        if self.truncated:
            lines = "1 line was" if self.truncated == 1 else f"{self.truncated:,} lines were"
            say(f"{lines} over {LONGEST_LINE} pieces long and cut there.")

    def hypotheses(
        self,
        lines: Sequence[str],
        *,
        beam: int = 4,
        length_penalty: float = 0.6,
        nbest: int = 1,
        advance: Callable[[int], None] = lambda lines: None,
    ) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each line as ids with scores; none for an empty line."""
        if not 1 <= nbest <= beam:
            raise UserError(f"nbest is {nbest}, but should be between 1 and the beam's width, {beam}.")
        filled = [i for i, line in enumerate(lines) if line.strip()]
        sentences = self.encode(self.source, [lines[i] for i in filled])
        results: list[list[Hypothesis]] = [[] for _ in lines]
        settings = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest, "fusion": self.fusion}
        found = translate_ids(self.translator, sentences, SPECIAL, **settings, advance=advance)
        for i, hypotheses in zip(filled, found, strict=True):
            results[i] = hypotheses
        advance(len(lines) - len(filled))
        return results

    def translate(self, lines: Sequence[str], *, beam: int = 4, length_penalty: float = 0.6) -> list[str]:
        """Translations of lines of text, in order; an empty line stays empty."""
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines; for one line, translate([line])")
        found = self.hypotheses(lines, beam=beam, length_penalty=length_penalty)
        return [self.target.decode(best[0].ids) if best else "" for best in found]
