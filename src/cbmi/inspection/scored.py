"""`cbmi inspect` of pairs that are scored already: by `cbmi score`, or by `cbmi.huggingface`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from cbmi.errors import UserError, first_line, import_extra
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.heatmap import HeatmapEntry, write_heatmap
from cbmi.progress import say
from cbmi.reporting.drawing import check_plotting

SAVED_DATASET = "dataset_info.json"  # in a folder that `datasets` has saved


def holds_scores(path: Path) -> bool:
    """Whether these are scored pairs, not a run directory."""
    return path.is_file() or (path / SAVED_DATASET).exists()


def inspect_scored(path: Path, page: Path, limit: int) -> None:
    """Write the page of the first pairs of a file of scores, at most `limit`."""
    check_plotting()
    pairs = []
    records = _records(path)
    for number, record in enumerate(islice(records, limit), start=1):
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: this is not a line of `cbmi score`.")
        try:
            pairs.append(ScoredPair.from_json(record, f"{path}, line {number}"))
        except (TypeError, ValueError, AttributeError):
            raise UserError(f"{path}, line {number}: this is not a line of `cbmi score`.") from None
    if not pairs:
        raise UserError(f"{path}: there is nothing to show.")
    if next(records, None) is not None:
        say(f"Showing the first {len(pairs):,} pairs; raise --limit to see more.")
    has_cbmi = any(pair.log_p_lm is not None for pair in pairs)
    write_heatmap(
        [HeatmapEntry(pair) for pair in pairs],
        page,
        "What the translation owes to the source" if has_cbmi else "How likely the translation is",
        str(path),
        models=[str(path)],
    )
    say(f"{page}: {len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'}")


def _records(path: Path) -> Iterator[Any]:
    if path.is_dir():
        datasets = import_extra("datasets", f"{path}: reading a dataset", "huggingface")
        try:
            yield from datasets.load_from_disk(str(path))
        except (OSError, ValueError) as error:
            reason = first_line(error)
            raise UserError(f"{path}: this dataset cannot be read: {reason}.") from None
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        yield from _json_lines(path)


def _json_lines(path: Path) -> Iterator[Any]:
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield _record(line, f"{path}, line {number}")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def _record(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: this is not a line of `cbmi score`.") from None


def _parquet(path: Path) -> Iterator[Any]:
    parquet = import_extra("pyarrow.parquet", f"{path}: reading Parquet", "huggingface")
    pyarrow = import_extra("pyarrow", f"{path}: reading Parquet", "huggingface")
    try:
        with parquet.ParquetFile(str(path)) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        reason = first_line(error)
        raise UserError(f"{path}: this is not a Parquet file: {reason}.") from None
