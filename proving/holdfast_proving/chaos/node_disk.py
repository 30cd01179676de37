"""The disk of a machine that may lose what was written last: nobody waits until it is through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
WRITES_MAX = 64


class ForgetfulDisk(Generic[T]):
    """The newest writes of one file, each with its time. One that was torn is found by its checksum, and not read."""

    def __init__(self, empty: T, seconds: Callable[[], float], loses_s: Callable[[], float]) -> None:
        self._seconds = seconds
        self._loses_s = loses_s
        self._before = empty
        self._writes: deque[tuple[float, T]] = deque()

    def write(self, content: T) -> None:
        if self._writes and self._writes[-1][1] is content:
            return
        self._writes.append((self._seconds(), content))
        if len(self._writes) > WRITES_MAX:
            _, self._before = self._writes.popleft()

    def after_loss(self) -> T:
        """Return what is left when the power is gone."""
        since_s = self._seconds() - self._loses_s()
        while self._writes and self._writes[-1][0] > since_s:
            self._writes.pop()
        return self._writes[-1][1] if self._writes else self._before
