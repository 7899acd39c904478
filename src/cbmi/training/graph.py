"""Steps replayed from a CUDA graph: the host has one call to make instead of some thousands.

The graph is a recording of `Stepper.compute` on parts of one fixed shape; a part that does not fit the shape is
computed as it comes.
"""

from __future__ import annotations

import torch

from cbmi.progress import say
from cbmi.training.part import Parcel
from cbmi.training.step import Stepper

WARM_UP = 3  # steps before the recording: kernels are compiled, moments and counters get their place in memory
IN_FLIGHT = 2  # steps that the host may be ahead of the GPU


class PlainSteps:
    """Every step computed as it comes."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper

    def run(self, parcels: list[Parcel]) -> None:
        self.stepper.compute([parcel.part(self.stepper.world.device) for parcel in parcels])


class GraphSteps(PlainSteps):
    """The first steps as they come, then a recording of one and its replays."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(stepper)
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm, self.possible = 0, True
        self.parcels: list[Parcel] = []  # of the shape that was recorded
        self.memory: list[torch.Tensor] = []
        self.norms: dict[str, torch.Tensor] = {}
        self.flying: list[torch.cuda.Event] = []

    def run(self, parcels: list[Parcel]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._run(parcels)
            event = torch.cuda.Event()
            event.record()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.flying.append(event)
        if len(self.flying) > IN_FLIGHT:
            self.flying.pop(0).synchronize()

    def _run(self, parcels: list[Parcel]) -> None:
        filled = all(parcel.filled for parcel in parcels)
        if self.warm < WARM_UP or not self.possible or not filled:
            self.warm += 1
            return super().run(parcels)
        if self.graph is None:
            self._record(parcels)
        if self.graph is None or not self._fit(parcels):
            return super().run(parcels)
        for memory, parcel in zip(self.memory, parcels, strict=True):
            memory.copy_(parcel.memory, non_blocking=True)
        self.graph.replay()
        self.stepper.norms = self.norms
        return None

    def _fit(self, parcels: list[Parcel]) -> bool:
        return all(a.table == b.table for a, b in zip(self.parcels, parcels, strict=True))

    def _record(self, parcels: list[Parcel]) -> None:
        torch.cuda.empty_cache()  # what the first steps used goes to the graph
        self.parcels = parcels
        self.memory = [parcel.memory.to(self.stepper.world.device) for parcel in parcels]
        parts = [parcel.part_in(memory) for parcel, memory in zip(parcels, self.memory, strict=True)]
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on: the loader takes memory for the next batches.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.stepper.compute(parts)
        except RuntimeError as error:
            self.possible = False
            self.stepper.forget_gradients()
            reason = str(error).splitlines()[0]
            say(f"Steps are not replayed from a CUDA graph, but computed one by one, which is slower: {reason}")
            return
        self.graph, self.norms = graph, self.stepper.norms
