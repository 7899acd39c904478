"""Steps computed one by one, or replayed from a CUDA graph.

A replay spares the host some thousands of calls per step. The graph is a recording of
`Stepper.compute` on micro-batches of one fixed shape; a micro-batch that does not fit the shape is
computed directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbmi.progress import say
from cbmi.training.batching.micro_batch import PinnedBatch
from cbmi.training.step import Stepper

# Steps before the recording: kernels are compiled, moments and counters get their place in memory.
WARM_UP = 3
IN_FLIGHT = 2  # steps that the host may be ahead of the GPU


class EagerSteps:
    """Every step computed directly."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper

    def compute(self, pinned_batches: Sequence[PinnedBatch]) -> None:
        device = self.stepper.world.device
        self.stepper.compute([pinned.to_device(device) for pinned in pinned_batches])


class GraphSteps(EagerSteps):
    """The first steps computed directly, then one recorded, and replays of it."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(stepper)
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.steps_computed = 0
        self.possible = True
        self.recorded: list[PinnedBatch] = []  # of the shape that was recorded
        self.device_memory: list[Tensor] = []  # what the graph reads
        self.grad_norms: dict[str, Tensor] = {}  # what the graph writes
        self.in_flight: list[torch.cuda.Event] = []

    def compute(self, pinned_batches: Sequence[PinnedBatch]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._compute(pinned_batches)
            event = torch.cuda.Event()
            event.record()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.in_flight.append(event)
        if len(self.in_flight) > IN_FLIGHT:
            self.in_flight.pop(0).synchronize()

    def _compute(self, pinned_batches: Sequence[PinnedBatch]) -> None:
        fits_capacity = all(pinned.filled for pinned in pinned_batches)
        if self.steps_computed < WARM_UP or not self.possible or not fits_capacity:
            self.steps_computed += 1
            super().compute(pinned_batches)
            return
        if self.graph is None:
            self._record(pinned_batches)
        if self.graph is None or not self._has_recorded_shape(pinned_batches):
            super().compute(pinned_batches)
            return
        for memory, pinned in zip(self.device_memory, pinned_batches, strict=True):
            memory.copy_(pinned.memory, non_blocking=True)
        self.graph.replay()
        self.stepper.grad_norms = self.grad_norms

    def _has_recorded_shape(self, pinned_batches: Sequence[PinnedBatch]) -> bool:
        pairs = zip(self.recorded, pinned_batches, strict=True)
        return all(recorded.slices == pinned.slices for recorded, pinned in pairs)

    def _record(self, pinned_batches: Sequence[PinnedBatch]) -> None:
        """Record a step. Nothing is computed yet: the first replay does that."""
        torch.cuda.empty_cache()  # memory that the first steps used goes to the graph
        device = self.stepper.world.device
        self.recorded = list(pinned_batches)
        self.device_memory = [pinned.memory.to(device) for pinned in pinned_batches]
        micro_batches = []
        for pinned, memory in zip(pinned_batches, self.device_memory, strict=True):
            micro_batches.append(pinned.micro_batch_in(memory))
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: the loader's thread may allocate memory for the next batches meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.stepper.compute(micro_batches)
        except RuntimeError as error:
            self.possible = False
            self.stepper.discard_gradients()
            reason = str(error).splitlines()[0]
            say(
                "Steps cannot be replayed from a CUDA graph and are computed one by one, which is "
                f"slower: {reason}"
            )
            return
        self.graph = graph
        self.grad_norms = self.stepper.grad_norms
