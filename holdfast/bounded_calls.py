"""System calls that may never return, as on a network file system that is away: each runs in its own thread, which the
caller does not wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def within(call: Callable[[], T], limit_s: float) -> T:
    """Return what a call returns. Raises what it raises, or TimeoutError; its thread is then left behind."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(limit_s)
