"""Progress of a rank's device through launched operations, reported when a job hangs.

NCCL's flight recorder shows whether a kernel has started if it may put an event with a time before each
(`TORCH_NCCL_ENABLE_TIMING`). Where kernels are to run in the order of their launch (`CUDA_DEVICE_MAX_CONNECTIONS=1`,
as Megatron's tensor parallelism asks for), such events keep communication from overlapping with computation. There a
mark without a time, of the kind that PyTorch itself puts behind each collective, goes into the stream before it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

TIMING = "TORCH_NCCL_ENABLE_TIMING"
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MARKS = 1024
"""The last operations that are marked; a host is seldom further ahead of its device."""


class Event(Protocol):
    """A mark in a stream: `query` returns True once the device has come to where it was recorded last."""

    def record(self) -> None: ...
    def query(self) -> bool: ...


class Device(Protocol):
    """The device on which marks are recorded. `is_ready`: a mark that is recorded now will run."""

    def is_ready(self) -> bool: ...
    def event(self) -> Event: ...


def choose(environ: MutableMapping[str, str]) -> bool:
    """Have NCCL's kernels timed, unless the environment decides it. Return True if they are to be marked instead."""
    if TIMING in environ:
        return False
    if environ.get(_CONNECTIONS) == "1":
        return True
    environ[TIMING] = "1"
    return False


class Marks:
    """The marks of the last operations. `failed` is the reason if no more are put; training goes on without."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events: list[Event | None] = [None] * MARKS
        self._numbers = [-1] * MARKS
        self._count = 0
        self.failed = ""

    def put(self, index: int) -> None:
        """Mark where operation `index` of the ring begins, in the stream in use."""
        place = self._count % MARKS
        try:
            if self.failed or not self._device.is_ready():
                return
            event = self._events[place] or self._device.event()
            self._numbers[place] = -1
            event.record()
        except RuntimeError as error:
            self.failed = str(error)
            return
        self._events[place], self._numbers[place] = event, index
        self._count += 1

    def reached(self) -> Iterator[tuple[int, bool]]:
        """Yield each marked operation, and True if the device has reached it."""
        for place in range(MARKS):
            index, event = self._numbers[place], self._events[place]
            if index < 0 or event is None:
                continue
            try:
                is_reached = event.query()
            except RuntimeError as error:
                self.failed = str(error)
                return
            # Another may have taken its place meanwhile.
            if self._numbers[place] == index:
                yield index, is_reached


class Cuda:
    """The device of this process, through PyTorch. What is captured into a graph is not marked: it runs later."""

    def __init__(self) -> None:
        self._cuda: Any = importlib.import_module("torch.cuda")

    def is_ready(self) -> bool:
        return bool(self._cuda.is_initialized()) and not self._cuda.is_current_stream_capturing()

    def event(self) -> Event:
        event: Event = self._cuda.Event()
        return event
