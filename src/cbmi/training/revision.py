"""What may change in a run that has begun: whatever does not falsify what has been computed.

Some settings only say where and how a run is computed. Others count from the next step on. Stages
that have not begun may be anything, and the current one may get longer or shorter. The rest belongs
to what has been computed: the data, the model, the seed, the stages that have begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cbmi.changes import Change, changes_between
from cbmi.config import RunSettings

# They do not touch what is computed.
FREE_TO_CHANGE = (
    "output",
    "data.test",
    "log",
    "checkpoints",
    "device",
    "compile",
    "memory",
    "parallel",
    "rank_timeout",
)
# They count from the next step on.
FROM_NOW_ON = (
    "optimizer",
    "validate",
    "label_smoothing",
    "r_drop",
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
)


class Progress(NamedTuple):
    """How far a run has got."""

    step: int  # over all stages
    stage: int
    stage_step: int


@dataclass(frozen=True)
class Revision:
    """What changes in a run: from the next step on, or against what has been computed."""

    accepted: list[Change] = field(default_factory=list)
    refused: list[Change] = field(default_factory=list)


def revise(old: RunSettings, new: RunSettings, progress: Progress) -> Revision:
    """How a run that has got so far would change, apart from what is free to change."""
    before = old.plain()
    after = new.plain()
    revision = _revised_stages(before.pop("stages"), after.pop("stages"), progress)
    for change in changes_between(before, after):
        if change.within(*FROM_NOW_ON):
            revision.accepted.append(change)
        elif not change.within(*FREE_TO_CHANGE):
            revision.refused.append(change)
    return revision


def _revised_stages(
    before: list[dict[str, Any]], after: list[dict[str, Any]], progress: Progress
) -> Revision:
    revision = Revision()
    current = progress.stage
    if len(before) != len(after):
        has_begun_ones = len(after) > current
        whole = Change("stages", before, after)
        (revision.accepted if has_begun_ones else revision.refused).append(whole)
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        label = old["name"] if old["name"] == new["name"] else number
        for change in changes_between(old, new, f"stages.{label}"):
            is_length = change.path == f"stages.{new['name']}.steps"
            may_end = new["steps"] >= progress.stage_step
            if number > current or (number == current and is_length and may_end):
                revision.accepted.append(change)
            else:
                revision.refused.append(change)
    return revision
