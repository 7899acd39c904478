"""What annotators see and are asked for, in one of two schemes; what is refused in their answers.

The schemes are adequacy and fluency on scales from 1 to 5, as in the paper, and error spans, minor
or major, as MQM and ESA have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from cbmi.errors import UserError

# With the paper's words for the ends of the scales.
CRITERIA = {
    "adequacy": ("irrelevant to the source sentence", "semantically equal"),
    "fluency": ("unintelligible", "fluent and native"),
}
LOWEST = 1
HIGHEST = 5

Scheme = Literal["scales", "spans"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
# What an error costs, by severity: MQM's weights.
PENALTIES = {"minor": 1, "major": 5}
MOST_SPANS = 1000  # of an item


class Rating(NamedTuple):
    """What an annotator says of an item."""

    item: int
    criterion: str
    value: int  # LOWEST to HIGHEST


class Span(NamedTuple):
    """An error that an annotator has marked in a translation.

    It has the characters from `start` up to `end`; of something that is missing, both are the
    length of the translation.
    """

    start: int
    end: int
    severity: str  # one of PENALTIES


@dataclass(frozen=True)
class StudyItem:
    """What an annotator sees of a translation, and has said of it so far. It names no system."""

    number: int
    source: str
    reference: str | None
    translation: str
    ratings: Mapping[str, int]  # by criterion
    spans: tuple[Span, ...] | None = None  # None: errors have not been marked yet

    def is_complete(self, scheme: Scheme) -> bool:
        """Whether all has been said of it."""
        if scheme == "spans":
            return self.spans is not None
        return len(self.ratings) == len(CRITERIA)

    def to_json(self) -> dict[str, Any]:
        """As the annotators' page reads it."""
        return {
            "item": self.number,
            "source": self.source,
            "reference": self.reference,
            "translation": self.translation,
            "ratings": dict(self.ratings),
            "spans": None if self.spans is None else [span._asdict() for span in self.spans],
        }


def check_spans(spans: Sequence[Span], length: int) -> None:
    """Refuse spans that are not in the translation, or overlap."""
    if len(spans) > MOST_SPANS:
        raise UserError(f"spans: {len(spans):,} are more than {MOST_SPANS:,}.")
    end = 0
    for span in sorted(spans):
        if span.severity not in PENALTIES:
            raise UserError(f"severity: '{span.severity}' is not one of {', '.join(PENALTIES)}.")
        is_missing = span.start == span.end == length
        if not is_missing and not end <= span.start < span.end <= length:
            raise UserError(
                f"spans: {span.start} to {span.end} is not a part of the translation of its own."
            )
        end = span.end


def check_rating(rating: Rating) -> None:
    """Refuse a rating that is not on the scale."""
    if rating.criterion not in CRITERIA:
        raise UserError(f"criterion: '{rating.criterion}' is not one of {', '.join(CRITERIA)}.")
    if not isinstance(rating.value, int) or not LOWEST <= rating.value <= HIGHEST:
        raise UserError(
            f"{rating.criterion} of item {rating.item}: {rating.value} should be a whole number "
            f"from {LOWEST} to {HIGHEST}."
        )
