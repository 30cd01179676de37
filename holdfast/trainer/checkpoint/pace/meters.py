"""Measures what keeping a step costs training, and how long a step takes without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from holdfast.trainer.checkpoint.pace.spacing import Samples


class Meter(Protocol):
    def begin(self, step: int) -> None:
        """Note that the script has this step to keep."""
        ...

    def end(self) -> None:
        """Note that the call which keeps the step has returned."""
        ...


class HostMeter:
    """Meter of state in the host's memory: the time in the call, and the time for which writers wait for the copy."""

    def __init__(
        self,
        samples: Samples,
        writers_waited_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writers_waited_s` returns for how long this process has waited for copies; of the last one it is known when
        the next step is kept.
        """
        self._samples = samples
        self._writers_waited_s = writers_waited_s
        self._clock = clock
        self._last: tuple[int, float] | None = None
        self._keep_s: float | None = None
        self._waited_s = 0.0
        self._unread: tuple[float, float, int] | None = None
        """Times of the last kept step: seconds in the call, seconds until the next one, number of steps until then."""

    def begin(self, step: int) -> None:
        now = self._clock()
        if self._last is not None and (steps := step - self._last[0]) > 0:
            between_s = now - self._last[1] - (self._keep_s or 0.0)
            if self._keep_s is None:
                self._samples.add(None, between_s / steps)
            else:
                self._unread = self._keep_s, between_s, steps
        self._last, self._keep_s = (step, now), None

    def end(self) -> None:
        assert self._last is not None
        self._keep_s = self._clock() - self._last[1]
        waited_s = max(0.0, self._writers_waited_s() - self._waited_s)
        self._waited_s = self._writers_waited_s()
        if self._unread is not None:
            keep_s, between_s, steps = self._unread
            self._samples.add(keep_s + waited_s, max(0.0, between_s - waited_s) / steps)
            self._unread = None
