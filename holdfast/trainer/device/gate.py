"""The gate: an optimizer's step waits, on the device, until what it changes has been copied. The host does not wait.

A hook before every optimizer's step sees all optimizers of this process that step, so what they own is known, too:
parameters and the tensors of their state.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.trainer.checkpoint.layout.dtensors import local_of
from holdfast.trainer.device.adapters import Adapter, DeviceEvent


class Owned(NamedTuple):
    """A stretch of memory that optimizers change, and its place in the order of their updates."""

    begin: int
    end: int
    order: int


class Gate:
    """A gate before one set of copies. It stays shut for an optimizer until `open` is called, however many step."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._event: DeviceEvent | None = None
        self._is_recorded: threading.Event | None = None
        self._on_pass: Callable[[], None] | None = None
        self._opened = threading.Event()
        self._is_timed = False
        self._waited: tuple[torch.Event, torch.Event] | None = None
        self.has_met_graph = False
        """An optimizer's step was recorded into a graph: its replays pass no gate."""
        _gates.add(self)

    def shut(
        self,
        event: DeviceEvent,
        is_recorded: threading.Event | None = None,
        on_pass: Callable[[], None] | None = None,
    ) -> None:
        """Have each optimizer's next step wait for `event`, once `is_recorded` (None: it is). `on_pass` is called once,
        when the first of them comes, with the device's work behind the event.
        """
        self._opened.clear()
        self._event, self._is_recorded, self._on_pass = event, is_recorded, on_pass

    def take_wait(self) -> tuple[torch.Event, torch.Event] | None:
        """Return the events before and after the first wait since the last call, which have the time; None: nothing
        waited, or this is the first call.
        """
        waited, self._waited, self._is_timed = self._waited, None, True
        return waited

    def open(self) -> None:
        """Let optimizers step: all that the gate was shut for is copied, or given up."""
        self._event = self._is_recorded = None
        self._opened.set()

    def hold_back(self) -> None:
        """Have the current stream wait for the event."""
        event, is_recorded = self._event, self._is_recorded
        if self._adapter.is_capturing():
            self.has_met_graph = True
            if event is not None:
                # A graph cannot wait for an event of outside, and the device must not be asked while it is recorded.
                self._opened.wait()
            # What it does would become a part of the graph.
            self._on_pass = None
            return
        if event is not None:
            stream = torch.accelerator.current_stream()
            # Those that come later do not wait any more.
            is_timed = self._is_timed and self._waited is None
            before = _timed(stream) if is_timed else None
            if is_recorded is not None:
                is_recorded.wait()
            event.wait()
            if before is not None:
                self._waited = before, _timed(stream)
        on_pass, self._on_pass = self._on_pass, None
        if on_pass is not None:
            on_pass()


def _timed(stream: torch.Stream) -> torch.Event:
    event = torch.Event(stream.device, enable_timing=True)
    event.record(stream)
    return event


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_seen: dict[int, weakref.ref[Optimizer]] = {}
"""Optimizers that have stepped, by their identity: there may be one for each parameter."""
_is_watching = False


def watch() -> None:
    """Begin to see the optimizers that step. A second call changes nothing."""
    global _is_watching
    if not _is_watching:
        # A compiler would take it for the same in each step.
        register_optimizer_step_pre_hook(torch.compiler.disable(_before_step))  # type: ignore[no-untyped-call]
        _is_watching = True


def seen() -> list[Optimizer]:
    """Return the optimizers that have stepped and still exist, in the order of their first steps."""
    return [optimizer for each in _seen.values() if (optimizer := each()) is not None]


def hold_back() -> None:
    """Have the current stream wait as before an optimizer's step."""
    for gate in tuple(_gates):
        gate.hold_back()


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    known = _seen.get(id(optimizer))
    if known is None or known() is not optimizer:
        for number in [number for number, each in _seen.items() if each() is None]:
            del _seen[number]
        _seen[id(optimizer)] = weakref.ref(optimizer)
    hold_back()


def owned_by(optimizers: Iterable[Optimizer]) -> tuple[Owned, ...]:
    """Return what optimizers change, by address: each parameter, followed by its state."""
    found: dict[int, Owned] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = optimizer.state[parameter].values() if parameter in optimizer.state else ()
                for tensor in (parameter, *(value for value in values if isinstance(value, torch.Tensor))):
                    local = local_of(tensor) if isinstance(tensor, DTensor) else tensor
                    address = local.data_ptr()
                    if local.nbytes and address not in found:
                        found[address] = Owned(address, address + local.nbytes, len(found))
    return tuple(sorted(found.values()))


def owner_of(address: int, nbytes: int, owned: Sequence[Owned]) -> int | None:
    """Return the order of the stretch that all of this memory lies in; None: optimizers do not change it, or a part."""
    index = bisect_right(owned, address, key=lambda each: each.begin) - 1
    if index < 0 or address + nbytes > owned[index].end:
        return None
    return owned[index].order
