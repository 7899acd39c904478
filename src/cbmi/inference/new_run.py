"""`cbmi init`: a commented run file for given files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from cbmi.data.compressed import COMPRESSED
from cbmi.data.formats.entry import Languages
from cbmi.data.languages import CODES, base_code
from cbmi.data.text import check_pairs, no_pairs
from cbmi.errors import UserError
from cbmi.training.fitting import (
    EMA,
    SCHEDULE,
    epoch_steps,
    extent_of,
    sizes_for,
    validation_for,
    warmup_for,
)

EPOCHS = 20

TEMPLATE = """\
# Train with: cbmi train {path}
# docs/guide.md explains every key. `cbmi train {path} --dry-run` says what would be done.
output: {output}  # the run directory: checkpoints, log, everything

data:
  source: {source}  # language codes
  target: {target}
  train: {train}
{valid}
{test}
  # vocabulary: {{size: {size}}}  # pieces for both sides together; if left out, at most this many

# Sizes that suit a corpus of {pairs:,} pairs.
model: {{preset: {model}, dropout: {dropout}}}  # tiny, small, medium, base or big
batch: {{tokens: {tokens}}}  # pieces per step
optimizer: {{warmup: {warmup}, schedule: {schedule}}}  # the learning rate rises, then falls to zero
ema: {ema}  # averaged weights are validated and used

stages:
  # First the translator alone, with a language model beside it.
  - {{name: pretrain, objective: ce, language_model: train, steps: {steps}}}
  # Then tokens that depend on the source count more.
  - {{name: adapt, objective: cbmi, language_model: cached, steps: {half}}}

validate: {{every: {every}}}  # steps; the checkpoint with the best BLEU is kept
"""


def language_of(file: str) -> str | None:
    """The language that a file is named after: de of train.de.gz."""
    name = Path(file).name
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    code = name.rpartition(".")[2]
    return code if code != name and base_code(code) in CODES else None


def run_file(
    path: Path,
    train: Sequence[str],
    languages: tuple[str | None, str | None],
    valid: Sequence[str] | None,
    test: Sequence[str] | None,
) -> str:
    """The text of a run file at `path`; `languages`: source and target, None to go by the names."""
    codes = _codes(train, languages)
    pairs = check_pairs(train, codes)
    if not pairs:
        raise UserError(f"{' and '.join(train)}: {no_pairs(train, codes)}.")
    for files in (valid, test):
        if files is not None:
            check_pairs(files, codes)
    sizes = sizes_for(pairs)
    extent = extent_of([train], codes)
    epoch = epoch_steps(extent, sizes.tokens)
    steps = _round(max(200, min(30_000, EPOCHS * epoch)))
    without = "  # valid: [FILE, FILE]  # without it there is no validation, and the last is used"
    return TEMPLATE.format(
        path=path,
        output=_quoted(f"runs/{path.stem}"),
        source=codes[0],
        target=codes[1],
        train=_list(train),
        valid=f"  valid: {_list(valid)}" if valid else without,
        test=f"  test: {{test: {_list(test)}}}" if test else "  # test: {NAME: [FILE, FILE]}",
        size=sizes.pieces,
        pairs=pairs,
        model=sizes.preset,
        dropout=sizes.dropout,
        tokens=sizes.tokens,
        warmup=warmup_for(epoch, steps),
        steps=steps,
        schedule=SCHEDULE,
        ema=EMA,
        half=_round(steps // 2),
        every=validation_for(epoch),
    )


def _codes(train: Sequence[str], languages: tuple[str | None, str | None]) -> Languages:
    codes = []
    for option, given, file in zip(
        ("source", "target"), languages, (train[0], train[-1]), strict=True
    ):
        code = given or (language_of(file) if len(train) == 2 else None)
        if code is None:
            raise UserError(
                f"--{option}-language: {file} does not say its language; name it, such as en."
            )
        codes.append(code)
    return codes[0], codes[1]


def _list(files: Sequence[str]) -> str:
    """As YAML, on one line."""
    return f"[{', '.join(_quoted(file) for file in files)}]"


def _quoted(text: str) -> str:
    """As YAML: plain if it is simple, else in quotes, which JSON's are."""
    if re.fullmatch(r"[\w./~+-]*[\w/]", text) and not text.startswith(("-", "~")):
        return text
    return json.dumps(text, ensure_ascii=False)


def _round(value: int) -> int:
    """To two digits."""
    return int(float(f"{value:.2g}"))
