"""Tokenised BLEU as Moses' multi-bleu.perl computes it, the figure older papers report."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cbmi.errors import UserError

ORDERS = (1, 2, 3, 4)


@dataclass(frozen=True)
class MultiBleu:
    """Tokenised BLEU of one system: score and precisions in percent, lengths in tokens."""

    score: float
    precisions: tuple[float, float, float, float]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int
    signature: str

    def __str__(self) -> str:
        """The line multi-bleu.perl prints."""
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = self.hypothesis_length / self.reference_length if self.reference_length else 0.0
        return (
            f"BLEU = {self.score:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"hyp_len={self.hypothesis_length}, ref_len={self.reference_length})"
        )


def multi_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    split_compounds: bool = False,
    language: str | None = None,
) -> MultiBleu:
    """Tokenised, case-sensitive, unsmoothed BLEU of `hypotheses` against one reference each.

    The lines are taken as they are, tokens separated by ASCII whitespace, unless `language` is given:
    then both sides first go through the Moses tokenizer of that language. `split_compounds` splits
    hyphenated words on both sides, as published English-German figures often do.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"There are {len(hypotheses)} hypotheses but {len(references)} references; "
            "give one reference line for every hypothesis line."
        )
    if language is not None:
        hypotheses, references = tokenize(hypotheses, language), tokenize(references, language)
    pairs = [
        (_tokens(hypothesis, split_compounds), _tokens(reference, split_compounds))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return _score(pairs, signature(split_compounds, language))


def check_language(language: str, where: str) -> None:
    """Refuse a language that Moses does not know; `where` is for the error."""
    try:
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        raise UserError("Moses tokenisation needs the extra 'eval': pip install 'cbmi[eval]'.") from None
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise UserError(f"{where}: Moses knows no language '{language}'; it knows {', '.join(known)}.")


def tokenize(lines: Sequence[str], language: str) -> list[str]:
    """`lines` tokenised by the Moses tokenizer of `language` (sacremoses), without HTML escapes."""
    check_language(language, "--tokenize")
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(language)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in lines]


def _tokens(line: str, split_compounds: bool) -> list[bytes]:
    """The tokens of `line`, as bytes.

    The Perl scripts read bytes: to them a no-break space is no space, and a multi-byte letter is
    several characters, which matters for the hyphens of "a-ä-b". Bytes give the same in both cases.
    """
    encoded = line.encode()
    if split_compounds:
        encoded = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", encoded)
    return encoded.split()


def _score(pairs: list[tuple[list[bytes], list[bytes]]], signature: str) -> MultiBleu:
    """BLEU of (hypothesis tokens, reference tokens) pairs."""
    hypothesis_length = sum(len(hypothesis) for hypothesis, _ in pairs)
    reference_length = sum(len(reference) for _, reference in pairs)
    precisions = tuple(_precision(pairs, order) for order in ORDERS)
    penalty = _brevity_penalty(hypothesis_length, reference_length)
    score = 0.0
    if all(precisions):
        score = penalty * math.exp(math.fsum(math.log(precision) for precision in precisions) / len(ORDERS))
    return MultiBleu(
        100 * score,
        tuple(100 * precision for precision in precisions),
        penalty,
        hypothesis_length,
        reference_length,
        signature,
    )


def _precision(pairs: list[tuple[list[bytes], list[bytes]]], order: int) -> float:
    """The share of the hypotheses' n-grams of this order that occur in their references."""
    matches = total = 0
    for hypothesis, reference in pairs:
        found = _ngrams(hypothesis, order)
        total += found.total()
        matches += (found & _ngrams(reference, order)).total()  # & takes the smaller count: clipping
    return matches / total if total else 0.0


def _ngrams(tokens: list[bytes], order: int) -> Counter:
    """How often each n-gram of this order occurs in `tokens`."""
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))


def _brevity_penalty(hypothesis_length: int, reference_length: int) -> float:
    """The factor below 1 by which hypotheses shorter than their references are penalised."""
    if hypothesis_length == 0 or reference_length == 0:
        return 0.0
    return min(1.0, math.exp(1 - reference_length / hypothesis_length))


def signature(split_compounds: bool, language: str | None) -> str:
    """What must be known to repeat the figure, in the style of sacrebleu's signatures."""
    tokens = "given" if language is None else f"moses-{language}"
    return f"multi-bleu|case:mixed|tok:{tokens}|split:{'compounds' if split_compounds else 'none'}"
