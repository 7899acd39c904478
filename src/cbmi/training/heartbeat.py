"""Whether the other ranks are alive: a rank that hangs would keep all others waiting for hours.

Every rank has a thread that counts up at torchrun's store and looks at the others' counts. One that
does not move is reported, and after a while this process ends, which ends the run: torchrun stops
the rest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from cbmi.progress import say

BEAT = 5.0  # seconds between two beats
REPORT_AFTER = 30.0  # seconds without a beat
LEFT = "left"  # in place of a count: the rank has gone, as it should
HUNG_STATUS = 1


@contextmanager
def heartbeat(rank: int, size: int, patience: float) -> Iterator[None]:
    """While the block runs, watch the other ranks; end the process after `patience` seconds."""
    monitor = _Monitor(rank, size, patience)
    thread = threading.Thread(target=monitor.run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
        monitor.is_done = True
    finally:
        monitor.leaving.set()
        thread.join(2 * BEAT)


class _Monitor:
    def __init__(self, rank: int, size: int, patience: float) -> None:
        self.rank = rank
        self.size = size
        self.patience = patience
        self.leaving = threading.Event()
        self.is_done = False  # false for a rank that leaves because of an error: others notice
        self.beats = 0
        now = time.monotonic()
        self.heard = dict.fromkeys(range(size), now)  # when each rank's count last moved
        self.counts: dict[int, str] = {}
        self.reported: set[int] = set()

    def run(self) -> None:
        # A connection of its own: the process group's may be busy.
        store = None
        while not self.leaving.wait(BEAT if store is not None else 0.0):
            try:
                if store is None:
                    store = _connect()
                self._beat(store)
                self._listen(store)
            except (RuntimeError, KeyError, ValueError):
                store = None
                if self.leaving.wait(BEAT):
                    return
            self._judge()
        if store is not None and self.is_done:
            with suppress(RuntimeError):
                store.set(self._key(self.rank), LEFT)

    def _key(self, rank: int) -> str:
        # Several machines need not agree on the count of restarts.
        one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == self.size
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_machine else "0"
        return f"cbmi beat {restart} {rank}"

    def _beat(self, store: TCPStore) -> None:
        self.beats += 1
        store.set(self._key(self.rank), str(self.beats))
        self.heard[self.rank] = time.monotonic()

    def _listen(self, store: TCPStore) -> None:
        for rank in range(self.size):
            if rank == self.rank or not store.check([self._key(rank)]):
                continue
            count = store.get(self._key(rank)).decode()
            if count == LEFT or count != self.counts.get(rank):
                self.counts[rank] = count
                self.heard[rank] = time.monotonic()
                self.reported.discard(rank)

    def _judge(self) -> None:
        now = time.monotonic()
        silent = {rank: now - heard for rank, heard in self.heard.items() if rank != self.rank}
        silent = {rank: seconds for rank, seconds in silent.items() if seconds > REPORT_AFTER}
        # The first rank that is well speaks for all.
        speaks = all(rank in silent for rank in range(self.rank))
        for rank, seconds in silent.items():
            if speaks and rank not in self.reported:
                say(
                    f"Rank {rank} has not been heard from for {seconds:.0f} s; the run ends after "
                    f"{self.patience:.0f} s (rank_timeout)."
                )
            self.reported.add(rank)
            if seconds > self.patience:
                if speaks:
                    print(
                        f"cbmi: rank {rank} has not been heard from for {seconds:.0f} s, so the "
                        "run ends; the same command resumes it.",
                        file=sys.stderr,
                        flush=True,
                    )
                os._exit(HUNG_STATUS)


def _connect() -> TCPStore:
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=BEAT),
    )
