"""The optimizer whose steps are the job's. Pure.

It is the first one to step. Another takes its place once that one is gone, or has made two steps while it made none: a
script may train in stages, with an optimizer for each. Optimizers that step beside it, as those of a GAN, add nothing.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

Moment = tuple[int, int]
"""Real and monotonic time."""


class Taken(NamedTuple):
    """When the job completed the steps that an optimizer's step shows: one, none, or two."""

    moments: tuple[Moment, ...]
    has_changed: bool = False


class CountedOptimizer:
    """Selection of the optimizer whose steps count as the job's. It holds weak references only."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None
        self._since: weakref.WeakKeyDictionary[Any, Moment] = weakref.WeakKeyDictionary()
        """Other optimizers that stepped after its last step."""
        self._beside: weakref.WeakSet[Any] = weakref.WeakSet()
        """Other optimizers that stepped before that."""

    @property
    def optimizer(self) -> Any:
        return None if self._optimizer is None else self._optimizer()

    def take(self, optimizer: Any, now: Moment) -> Taken:
        """Note that an optimizer has made a step."""
        current = self.optimizer
        if current is optimizer:
            if self._since:
                self._beside.update(self._since)
                self._since.clear()
            return Taken((now,))
        before = self._since.get(optimizer)
        if current is not None and before is None:
            self._since[optimizer] = now
            return Taken(())
        has_changed = self._optimizer is not None
        # The first step of one that steps beside it belongs to a step that is counted.
        moments = (now,) if before is None or optimizer in self._beside else (before, now)
        self._optimizer = weakref.ref(optimizer)
        self._since.clear()
        return Taken(moments, has_changed)
