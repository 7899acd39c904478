"""Validation: loss and perplexity of the gold text, BLEU of the model's own."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import TypeVar

import torch
from torch import nn

from cbmi.config import RunSettings
from cbmi.data.corpus import Corpus
from cbmi.data.text import read_pairs
from cbmi.data.vocabulary import BOS, EOS, PAD, UNKNOWN, Vocabulary
from cbmi.decoding import Fusion, SearchSettings, SpecialIds, translate_ids
from cbmi.evaluation.metrics import bleu_tokenizer, corpus_bleu
from cbmi.model import LanguageModel, Translator
from cbmi.model.fusion import FusionKind, gold_scores
from cbmi.training.batching.micro_batch import StepInfo, make_micro_batch
from cbmi.training.batching.plan import EpochPlan
from cbmi.training.world import World

SPECIAL = SpecialIds(PAD, BOS, EOS, UNKNOWN)
Network = TypeVar("Network", bound=nn.Module)


class Validator:
    """Validates the networks of a run on its validation corpus."""

    def __init__(
        self, config: RunSettings, corpus: Corpus, target: Vocabulary, world: World
    ) -> None:
        self.settings = config.validate_
        self.corpus = corpus
        self.vocabulary = target
        self.world = world
        lengths = corpus.lengths()
        tokens = max(config.batch.tokens, int(lengths.max()))
        self.batches = EpochPlan(lengths, tokens, seed=0, epoch=0)
        self.references: list[str] = []
        self.tokenizer = bleu_tokenizer(config.data.target)
        if self.settings.beam and config.data.valid:
            pairs = read_pairs(config.data.valid, config.data.languages, Counter())
            texts = [target_line for _, target_line in pairs]
            self.references = [texts[line] for line in corpus.lines]

    def validate(
        self,
        translator: Translator,
        language_model: LanguageModel | None,
        precision: torch.dtype,
        fusion: FusionKind | None = None,
    ) -> dict[str, float]:
        """Figures for the log: valid_loss (negative log-likelihood per token), valid_ppl,
        valid_bleu …

        With `fusion`, those of translator and language model fused.
        """
        networks = [translator] if language_model is None else [translator, language_model]
        modes = [network.training for network in networks]
        for network in networks:
            network.eval()
        half = precision != torch.float32
        with torch.autocast(self.world.device.type, precision, enabled=half):
            result = self._losses(translator, language_model, fusion)
        if self.settings.beam and math.isfinite(result["valid_loss"]):
            if half:
                # The search wants the weights themselves in half precision.
                translator = _copy(translator, precision)
                language_model = language_model and _copy(language_model, precision)
            search_fusion = Fusion(language_model, fusion) if language_model and fusion else None
            result["valid_bleu"] = self._bleu(translator, search_fusion)
        for network, mode in zip(networks, modes, strict=True):
            network.train(mode)
        return result

    @torch.inference_mode()
    def _losses(
        self,
        translator: Translator,
        language_model: LanguageModel | None,
        fusion: FusionKind | None,
    ) -> dict[str, float]:
        """Every rank scores its share of the batches."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.world.device)
        for number in range(self.world.rank, len(self.batches), self.world.size):
            micro_batch = make_micro_batch(
                self.corpus, self.batches[number], StepInfo(), {}, self.world.device
            )
            gold = micro_batch.target.ids
            scores = gold_scores(
                translator, language_model, micro_batch.source, micro_batch.inputs, gold, fusion
            )
            sums[0] += len(gold)
            sums[1] -= scores.nmt.double().sum()
            if scores.lm is not None:
                sums[2] -= scores.lm.double().sum()
        tokens, nll, lm_nll = self.world.sum(sums).tolist()
        result = {"valid_loss": nll / tokens, "valid_ppl": math.exp(min(nll / tokens, 700))}
        if language_model is not None:
            result["valid_lm_ppl"] = math.exp(min(lm_nll / tokens, 700))
        return result

    def _bleu(self, translator: Translator, fusion: Fusion | None) -> float:
        """BLEU of beam search; every rank translates its share of the sentences."""
        side = self.corpus.source
        rank = self.world.rank
        ranks = self.world.size
        sentences = []
        for i in range(rank, len(self.corpus), ranks):
            sentences.append(side.ids[side.offsets[i] : side.offsets[i + 1]].tolist())
        settings = SearchSettings(
            SPECIAL,
            beam=self.settings.beam,
            length_penalty=self.settings.length_penalty,
            fusion=fusion,
        )
        found = translate_ids(translator, sentences, settings)
        texts = [self.vocabulary.decode(hypotheses[0].ids) for hypotheses in found]
        texts_of_rank = self.world.gather(texts)
        in_order = [texts_of_rank[i % ranks][i // ranks] for i in range(len(self.corpus))]
        return corpus_bleu(in_order, self.references, self.tokenizer)


def _copy(network: Network, precision: torch.dtype) -> Network:
    return copy.deepcopy(network).to(precision).eval().requires_grad_(False)
