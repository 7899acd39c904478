"""Ray scores as one process does, also when a worker is lost on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tasks import cbmi, refused
from web import serving

pytest.importorskip("ray")
pytest.importorskip("psutil")

import psutil
import pyarrow
import pyarrow.parquet

from cbmi.filtering import scores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WINDOW = 20  # pairs of a chunk


@pytest.fixture
def corpus(small_run, tmp_path, monkeypatch) -> list[str]:
    """Files of several chunks; one side is empty here and there."""
    monkeypatch.setattr(scores, "WINDOW", WINDOW)
    task = small_run
    files = []
    for option, end in (("--source", "src"), ("--target", "tgt")):
        lines = (task / f"train.{end}").read_text().splitlines()
        lines = (lines * 10)[: 5 * WINDOW + 7]
        lines[3] = ""
        path = tmp_path / f"corpus.{end}"
        path.write_text("".join(line + "\n" for line in lines))
        files += [option, str(path)]
    return files


def parts(prefix: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(prefix.parent.glob(f"{prefix.name}.*")):
        if path.is_file() and path.suffix != ".html":
            found[path.name.removeprefix(prefix.name)] = path.read_bytes()
    return found


def test_the_same_as_one_process(small_run, corpus, tmp_path):
    run = small_run / "run"
    options = ["--keep", "0.6"]
    one = tmp_path / "one"
    assert cbmi("filter", run, *corpus, *options, "-o", one).returncode == 0
    other = tmp_path / "other"
    result = cbmi("filter", run, *corpus, *options, "-o", other, "--engine=ray", "--workers=2")
    assert result.returncode == 0, result.stderr.decode()
    assert parts(other) == parts(one)
    assert {".kept.xx", ".dropped.scores"} <= parts(one).keys()


def shards_of(corpus: list[str], folder: Path) -> None:
    """The same corpus in three Parquet files."""
    sides = [Path(path).read_text().splitlines() for path in corpus[1::2]]
    rows = [{"xx": source, "yy": target} for source, target in zip(*sides, strict=True)]
    for number in range(3):
        part = rows[40 * number : 40 * (number + 1)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"{number}.parquet")


def test_shards_behind_a_url(small_run, corpus, tmp_path):
    """Chunks and shards have other boundaries; an empty side is not an entry of a table."""
    run = small_run / "run"
    web = tmp_path / "web"
    web.mkdir()
    shards_of(corpus, web)
    one = tmp_path / "one"
    other = tmp_path / "other"
    with serving(web) as address:
        shards = ["--source", f"{address}/*.parquet", "--keep=0.6"]
        assert cbmi("filter", run, *shards, "-o", one).returncode == 0
        result = cbmi("filter", run, *shards, "-o", other, "--engine=ray", "--workers=2")
        assert result.returncode == 0, result.stderr.decode()
        assert parts(other) == parts(one)
        # A second call finds the scores of the first.
        result = cbmi("filter", run, *shards, "--max-ratio=9", "-o", one)
        assert result.returncode == 0, result.stderr.decode()
        assert b"Scoring" not in result.stderr
    kept_and_dropped = parts(other)[".kept.xx"] + parts(one)[".dropped.xx"]
    assert kept_and_dropped.count(b"\n") == 5 * WINDOW + 7 - 1


def kill_a_worker(killed: list[int]) -> None:
    """Kill, as the kernel would, the first process that holds a model."""
    for _ in range(1200):
        for process in psutil.Process().children(recursive=True):
            try:
                title = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "ChunkScorer" in title or "MapWorker" in title:
                time.sleep(0.5)
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
                return
        time.sleep(0.1)


def test_a_worker_that_is_killed_is_replaced(small_run, corpus, tmp_path):
    run = small_run / "run"
    one = tmp_path / "one"
    assert cbmi("filter", run, *corpus, "--keep=0.6", "-o", one).returncode == 0
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(killed,))
    killer.start()
    other = tmp_path / "other"
    ray = ["--engine=ray", "--workers=2"]
    result = cbmi("filter", run, *corpus, "--keep=0.6", "-o", other, *ray)
    killer.join()
    assert killed
    assert result.returncode == 0, result.stderr.decode()
    assert parts(other) == parts(one)


def test_options_that_do_not_go_together(small_run, corpus, tmp_path):
    output = ("-o", tmp_path / "x")
    message = refused("filter", small_run / "run", *corpus, *output, "--workers=2")
    assert "address and workers are for engine ray" in message
    message = refused(
        "filter", small_run / "run", *corpus, *output, "--engine=ray", "--address=127.0.0.1:1"
    )
    assert "--address: 127.0.0.1:1 cannot be reached: Connection refused" in message
