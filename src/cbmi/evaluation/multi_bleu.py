"""Tokenised BLEU as Moses' multi-bleu.perl computes it, the figure older papers report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cbmi.errors import UserError, import_extra

ORDERS = (1, 2, 3, 4)

Tokens = list[bytes]


class Segment(NamedTuple):
    """One hypothesis, with the references that it is compared with."""

    hypothesis: Tokens
    references: list[Tokens]

    def reference_length(self) -> int:
        """That of the reference whose length is closest; of two, the shorter."""
        own = len(self.hypothesis)
        lengths = [len(reference) for reference in self.references]
        return min(lengths, key=lambda length: (abs(length - own), length))


@dataclass(frozen=True)
class MultiBleu:
    """Tokenised BLEU of one system: score and precisions in percent, lengths in tokens."""

    score: float
    precisions: tuple[float, ...]  # one per order
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int
    signature: str

    def __str__(self) -> str:
        """The line multi-bleu.perl prints."""
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = self.hypothesis_length / self.reference_length if self.reference_length else 0.0
        return (
            f"BLEU = {self.score:.2f}, {precisions} "
            f"(BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"hyp_len={self.hypothesis_length}, ref_len={self.reference_length})"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "precisions": list(self.precisions),
            "brevity_penalty": self.brevity_penalty,
            "hypothesis_length": self.hypothesis_length,
            "reference_length": self.reference_length,
            "signature": self.signature,
        }


def multi_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *more_references: Sequence[str],
    split_compounds: bool = False,
    language: str | None = None,
) -> MultiBleu:
    """Tokenised, case-sensitive, unsmoothed BLEU of `hypotheses` against one or more references.

    The lines are taken as they are, tokens separated by ASCII whitespace. If `language` is given,
    both sides first go through the Moses tokenizer of that language. `split_compounds` splits
    hyphenated words on both sides, as published English-German figures often do.
    """
    texts = [hypotheses, references, *more_references]
    for text in texts[1:]:
        if len(text) != len(hypotheses):
            raise UserError(
                f"There are {len(hypotheses)} hypotheses but {len(text)} references; "
                "give one reference line for every hypothesis line."
            )
    if language is not None:
        texts = [tokenize(text, language) for text in texts]
    segments = []
    for lines in zip(*texts, strict=True):
        hypothesis, *others = [_tokens(line, split_compounds) for line in lines]
        segments.append(Segment(hypothesis, others))
    return _score(segments, signature(split_compounds, language, len(texts) - 1))


def check_language(language: str, where: str) -> None:
    """Refuse a language that Moses does not know; `where` is for the error."""
    corpus = import_extra("sacremoses.corpus", "Moses tokenisation", "eval")
    known = sorted(set(corpus.NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise UserError(
            f"{where}: the Moses tokenizer does not support the language '{language}'; "
            f"it supports {', '.join(known)}."
        )


def tokenize(lines: Sequence[str], language: str) -> list[str]:
    """`lines` tokenised by the Moses tokenizer of `language` (sacremoses), without HTML escapes."""
    check_language(language, "tokenize")
    sacremoses = import_extra("sacremoses", "Moses tokenisation", "eval")
    tokenizer = sacremoses.MosesTokenizer(language)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in lines]


def signature(split_compounds: bool, language: str | None, references: int = 1) -> str:
    """What must be known to repeat the figure, in the style of sacrebleu's signatures."""
    tokens = "given" if language is None else f"moses-{language}"
    split = "compounds" if split_compounds else "none"
    several = f"nrefs:{references}|" if references > 1 else ""
    return f"multi-bleu|{several}case:mixed|tok:{tokens}|split:{split}"


def _tokens(line: str, split_compounds: bool) -> Tokens:
    """The tokens of `line`, as bytes.

    The Perl scripts read bytes: to them a no-break space is not a space, and a multi-byte letter is
    several characters, which matters for the hyphens of "a-ä-b". Bytes give the same in both cases.
    """
    encoded = line.encode()
    if split_compounds:
        encoded = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", encoded)
    return encoded.split()


def _score(segments: Sequence[Segment], signature: str) -> MultiBleu:
    """BLEU = brevity penalty · geometric mean of the precisions; 0 if one of them is 0."""
    hypothesis_length = sum(len(segment.hypothesis) for segment in segments)
    reference_length = sum(segment.reference_length() for segment in segments)
    precisions = [_precision(segments, order) for order in ORDERS]
    penalty = _brevity_penalty(hypothesis_length, reference_length)
    score = 0.0
    if all(precisions):
        logarithms = [math.log(precision) for precision in precisions]
        score = penalty * math.exp(math.fsum(logarithms) / len(ORDERS))
    return MultiBleu(
        score=100 * score,
        precisions=tuple(100 * precision for precision in precisions),
        brevity_penalty=penalty,
        hypothesis_length=hypothesis_length,
        reference_length=reference_length,
        signature=signature,
    )


def _precision(segments: Sequence[Segment], order: int) -> float:
    """The share of the hypotheses' n-grams of this order that occur in their references."""
    matches = 0
    total = 0
    for segment in segments:
        found = _ngrams(segment.hypothesis, order)
        wanted: Counter[tuple[bytes, ...]] = Counter()
        for reference in segment.references:
            wanted |= _ngrams(reference, order)  # the largest count of any reference
        # `&` takes the smaller count of each n-gram: this is the clipping of BLEU.
        clipped = found & wanted
        matches += clipped.total()
        total += found.total()
    return matches / total if total else 0.0


def _ngrams(tokens: Tokens, order: int) -> Counter[tuple[bytes, ...]]:
    """How often each n-gram of this order occurs in `tokens`."""
    starts = range(len(tokens) - order + 1)
    return Counter(tuple(tokens[start : start + order]) for start in starts)


def _brevity_penalty(hypothesis_length: int, reference_length: int) -> float:
    """The factor below 1 by which hypotheses shorter than their references are penalised."""
    if hypothesis_length == 0 or reference_length == 0:
        return 0.0
    return min(1.0, math.exp(1 - reference_length / hypothesis_length))
