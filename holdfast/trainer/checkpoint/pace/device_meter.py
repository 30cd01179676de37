"""Measures what keeping a step costs an accelerator: the time for which the device itself waits.

That is the time from the call to the end of the work that the call queued, which includes the device's idle time while
the host is in the call; and the wait at the gate. Events on training's stream record the times; they are read some
steps later, so that nothing waits for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from holdfast.trainer.checkpoint.pace.spacing import Samples

GateWait = tuple[torch.Event, torch.Event]
"""Events before and after training's stream waited at a gate."""
UNREAD_MAX = 64
"""Most steps that the device may be behind the host."""

log = logging.getLogger("holdfast.trainer.checkpoint")


class _Call(NamedTuple):
    """A call, in events; `ended` None: the step was not kept."""

    step: int
    began: torch.Event
    ended: torch.Event | None


class _Unread(NamedTuple):
    call: _Call
    gate: GateWait | None
    next_step: int
    next_began: torch.Event


class DeviceMeter:
    def __init__(self, samples: Samples, take_gate_wait: Callable[[], GateWait | None]) -> None:
        """`take_gate_wait` returns the wait at the gate since the last call of it, if there was one."""
        self._samples = samples
        self._take_gate_wait = take_gate_wait
        self._last: _Call | None = None
        self._unread: deque[_Unread] = deque(maxlen=UNREAD_MAX)
        self._has_time = True

    def begin(self, step: int) -> None:
        last, self._last = self._last, None
        if not self._has_time:
            return
        try:
            began, gate = self._now(), self._take_gate_wait()
            if last is not None and step > last.step:
                self._unread.append(_Unread(last, gate, step, began))
            self._read()
        except (RuntimeError, NotImplementedError) as error:
            self._has_time = False
            log.info("what keeping a step costs is not known, so each is kept: events have no time: %s", error)
        else:
            self._last = _Call(step, began, None)

    def end(self) -> None:
        if self._last is not None:
            self._last = self._last._replace(ended=self._now())

    def _now(self) -> torch.Event:
        stream = torch.accelerator.current_stream()
        event = torch.Event(stream.device, enable_timing=True)
        event.record(stream)
        return event

    def _read(self) -> None:
        while self._unread and self._is_over(self._unread[0]):
            call, gate, next_step, next_began = self._unread.popleft()
            keep_s = None
            if call.ended is not None:
                keep_s = _between_s(call.began, call.ended) + (_between_s(*gate) if gate is not None else 0.0)
            between_s = _between_s(call.began, next_began) - (keep_s or 0.0)
            self._samples.add(keep_s, max(0.0, between_s) / (next_step - call.step))

    def _is_over(self, unread: _Unread) -> bool:
        events = [unread.next_began, *(unread.gate or ())]
        return all(event.query() for event in events)


def _between_s(one: torch.Event, other: torch.Event) -> float:
    return float(one.elapsed_time(other)) / 1e3
