"""Waiting for conditions, with a deadline that fails loudly and never hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 60.0
LOOK_EVERY_S = 0.02
LOOK_EVERY_MOST_S = 0.1

T = TypeVar("T")


class NotYet(Exception):
    """Raised by a condition that cannot be asked now, with the reason."""


def until(what: str, condition: Callable[[], T], *, within_s: float = DEADLINE_S, look: Callable[[], str] = str) -> T:
    """The first true value of `condition`; `look` describes the scene for the failure."""
    started = time.monotonic()
    last: object = None
    while True:
        began = time.monotonic()
        try:
            value = condition()
        except NotYet as reason:
            last = reason
        else:
            if value:
                return value
            last = value
        now = time.monotonic()
        if now - started > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what} (last: {last!r})\n{look()}")
        # Looking takes from those who are looked at: at most a quarter of the time, and less of a long wait.
        pause_s = max(LOOK_EVERY_S, min(LOOK_EVERY_MOST_S, (now - started) / 20))
        time.sleep(max(pause_s, 3 * (now - began)))
