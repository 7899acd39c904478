"""Scoring a corpus on a cluster, by Ray Data: actors that hold the model score chunk by chunk.

The process that was started reads the corpus and writes the scores. A row of the dataset is a chunk
in a file, scored as a whole, as one process would score it; Ray gives the chunks of an actor
that was lost to another.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbmi.data.text import Pair
from cbmi.errors import UserError, first_line, import_extra
from cbmi.filtering.chunks import COLUMNS, chunk_rows
from cbmi.inference.base import Model
from cbmi.inference.loading import load_model
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import PairScorer

WHAT = "--engine ray"
EXTRA = "ray"
CONNECTION = 10.0  # seconds in which a cluster has to answer


class RayCluster(NamedTuple):
    address: str | None = None  # None: Ray is started on this machine
    workers: int | None = None  # None: one per GPU, or one for two CPUs


class ScoredChunk(NamedTuple):
    number: int
    rows: np.ndarray  # (pairs, columns)
    truncated: int  # lines that were truncated


class ChunkScorer:
    """What an actor does: it loads the model once, and scores chunks."""

    def __init__(self, path: str, checkpoint: str | None, device: str, precision: str) -> None:
        self.model = load_model(path, checkpoint, device, precision)
        self.scorer = PairScorer(self.model)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        # Read here, by the actor: a reader of its own would need a CPU that the actors have.
        (chunk,) = import_extra("pyarrow.parquet", WHAT, EXTRA).read_table(row["file"]).to_pylist()
        pairs = list(zip(chunk["sources"], chunk["targets"], strict=True))
        before = self.model.truncated
        rows = chunk_rows(self.scorer, pairs)
        return {
            "number": chunk["number"],
            "rows": rows.ravel(),
            "truncated": self.model.truncated - before,
        }


def score_on_cluster(
    cluster: RayCluster,
    model: Model,
    chunks: Iterable[tuple[int, list[Pair]]],
    folder: Path,
) -> Iterator[ScoredChunk]:
    """Scores of chunks, in any order. The chunks wait in `folder`, which all nodes have to see."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_extra("ray", WHAT, EXTRA)
    data = import_extra("ray.data", WHAT, EXTRA)
    _check_address(cluster.address)
    files = _write_chunks(chunks, folder)
    was_running = ray.is_initialized()
    try:
        if not was_running:
            ray.init(
                address=cluster.address,
                include_dashboard=False if cluster.address is None else None,
                log_to_driver=False,
                logging_level="error",
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise UserError(f"--address: Ray cannot be reached: {reason}.") from None
    try:
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        workers = cluster.workers or gpus or max(1, int(resources.get("CPU", 1)) // 2)
        checkpoint = model.folder.name if isinstance(model, TrainedModel) else None
        path = str(model.path.resolve())
        device = "cuda" if gpus else "cpu"
        rows = [{"file": file} for file in files]
        dataset = data.from_items(rows, override_num_blocks=len(rows)).map(
            ChunkScorer,
            fn_constructor_args=(path, checkpoint, device, "fp32"),
            compute=data.ActorPoolStrategy(size=min(workers, len(files))),
            num_gpus=1 if gpus else 0,
            num_cpus=0 if gpus else 1,
        )
        for row in dataset.iter_rows():
            scored = np.asarray(row["rows"], dtype=np.float64).reshape(-1, len(COLUMNS))
            yield ScoredChunk(int(row["number"]), scored, int(row["truncated"]))
    finally:
        if not was_running:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), CONNECTION).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"--address: {address} cannot be reached: {reason}.") from None


def _write_chunks(chunks: Iterable[tuple[int, list[Pair]]], folder: Path) -> list[str]:
    """One file of one row per chunk."""
    arrow = import_extra("pyarrow", WHAT, EXTRA)
    parquet = import_extra("pyarrow.parquet", WHAT, EXTRA)
    files = []
    for number, pairs in chunks:
        table = arrow.table(
            {
                "number": [number],
                "sources": [[source for source, _ in pairs]],
                "targets": [[target for _, target in pairs]],
            }
        )
        path = folder / f"{number:07}.parquet"
        parquet.write_table(table, path)
        files.append(str(path.resolve()))
    return files
