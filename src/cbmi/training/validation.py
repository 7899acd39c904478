"""Validation: loss and perplexity of the gold text, BLEU of the model's own."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import TypeVar

import torch
from torch import nn

from cbmi.config import RunConfig
from cbmi.data.corpus import Corpus
from cbmi.data.plan import EpochPlan
from cbmi.data.text import read_pairs
from cbmi.data.vocabulary import BOS, EOS, PAD, Vocabulary
from cbmi.decoding import Fusion, Special, translate_ids
from cbmi.evaluation.metrics import bleu_tokenizer, corpus_bleu
from cbmi.model import LanguageModel, Translator
from cbmi.model.fusion import gold_scores
from cbmi.training.part import Facts, make_part
from cbmi.training.world import World

SPECIAL = Special(PAD, BOS, EOS)
Network = TypeVar("Network", bound=nn.Module)


class Validator:
    """Validates the networks of a run on its validation corpus."""

    def __init__(self, config: RunConfig, corpus: Corpus, target: Vocabulary, world: World) -> None:
        self.settings, self.corpus, self.vocabulary, self.world = config.validate_, corpus, target, world
        lengths = corpus.lengths()
        self.batches = EpochPlan(lengths, max(config.batch.tokens, int(lengths.max())), 0, 0)
        self.references: list[str] = []
        self.tokenizer = bleu_tokenizer(config.data.target)
        if self.settings.beam:
            texts = [pair[1] for pair in read_pairs(config.data.valid, Counter())]
            self.references = [texts[line] for line in corpus.lines]
            corpus_bleu(
                self.references[:1], self.references[:1], self.tokenizer
            )  # says now whether sacrebleu is missing

    def validate(
        self,
        translator: Translator,
        language_model: LanguageModel | None,
        precision: torch.dtype,
        fusion: str | None = None,
    ) -> dict[str, float]:
        """Figures for the log: valid_loss (negative log-likelihood a token), valid_ppl, valid_bleu …

        With `fusion`, those of translator and language model fused.
        """
        networks = [network for network in (translator, language_model) if network is not None]
        modes = [network.training for network in networks]
        for network in networks:
            network.eval()
        half = precision != torch.float32
        with torch.autocast(self.world.device.type, precision, enabled=half):
            result = self._losses(translator, language_model, fusion)
        if self.settings.beam and math.isfinite(
            result["valid_loss"]
        ):  # the search wants the weights themselves in half precision
            translator, language_model = (
                _copy(network, precision) if half and network is not None else network
                for network in (translator, language_model)
            )
            result["valid_bleu"] = self._bleu(translator, Fusion(language_model, fusion) if fusion else None)
        for network, mode in zip(networks, modes, strict=True):
            network.train(mode)
        return result

    @torch.inference_mode()
    def _losses(
        self, translator: Translator, language_model: LanguageModel | None, fusion: str | None
    ) -> dict[str, float]:
        sums = torch.zeros(3, dtype=torch.float64, device=self.world.device)
        for number in range(self.world.rank, len(self.batches), self.world.size):
            part = make_part(self.corpus, self.batches[number], Facts(), {}, self.world.device)
            sums[0] += len(part.target.ids)
            batch = (part.source, part.inputs, part.target.ids)
            nmt, _, lm = gold_scores(translator, language_model, *batch, fusion)
            sums[1] -= nmt.double().sum()
            if lm is not None:
                sums[2] -= lm.double().sum()
        tokens, nll, lm_nll = self.world.sum(sums).tolist()
        result = {"valid_loss": nll / tokens, "valid_ppl": math.exp(min(nll / tokens, 700))}
        if language_model is not None:
            result["valid_lm_ppl"] = math.exp(min(lm_nll / tokens, 700))
        return result

    def _bleu(self, translator: Translator, fusion: Fusion | None) -> float:
        """BLEU of beam search; every rank translates its share of the sentences."""
        side = self.corpus.source
        mine = range(self.world.rank, len(self.corpus), self.world.size)
        sentences = [side.ids[side.offsets[i] : side.offsets[i + 1]].tolist() for i in mine]
        found = translate_ids(
            translator,
            sentences,
            SPECIAL,
            beam=self.settings.beam,
            length_penalty=self.settings.length_penalty,
            fusion=fusion,
        )
        texts = [self.vocabulary.decode(hypotheses[0].ids) for hypotheses in found]
        shares = self.world.gather(texts)
        together = [shares[i % self.world.size][i // self.world.size] for i in range(len(self.corpus))]
        return corpus_bleu(together, self.references, self.tokenizer)


def _copy(network: Network, precision: torch.dtype) -> Network:
    return copy.deepcopy(network).to(precision).eval().requires_grad_(False)
