"""When a copy may go out: not faster than a rate, and not while the ranks talk to each other.

Copies share the network with training and must not be felt there (ByteRobust §6.3 puts them into the gaps between
collectives). What a recovery waits for is not paced.
"""

from __future__ import annotations

from collections.abc import Callable

POLL_S = 0.001
PAUSE_S_MAX = 0.05
"""A rank that is always in some collective would otherwise never have a copy."""


class TokenBucket:
    """A limit of `per_s` bytes in a second, after a burst of at most `burst`. A rate of 0 is no limit."""

    def __init__(self, per_s: float, burst: int, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at = now

    def wait_s(self, nbytes: int, now: float) -> float:
        """Take `nbytes`, and return how long to wait before they are sent."""
        if not self._per_s:
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s) - nbytes
        self._at = now
        return max(0.0, -self._tokens / self._per_s)


class Pacing:
    """The rate and the pauses together. `is_hot` returns True while training needs the network."""

    def __init__(self, bucket: TokenBucket, is_hot: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._is_hot = is_hot
        self._paused_since: float | None = None

    def pause_s(self, now: float) -> float:
        """Return the seconds to wait before the next call; 0.0 if the network is quiet or the pause was long enough."""
        if not self._is_hot():
            self._paused_since = None
            return 0.0
        if self._paused_since is None:
            self._paused_since = now
        if now - self._paused_since >= PAUSE_S_MAX:
            self._paused_since = None
            return 0.0
        return POLL_S

    def wait_s(self, nbytes: int, now: float) -> float:
        return self._bucket.wait_s(nbytes, now)
