"""System calls that may never return, as on a network file system that is away: each runs in its own thread, which the
caller does not wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Begin a call in a new thread, and return what it will return or raise."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks for the result
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def within(call: Callable[[], T], limit_s: float) -> T:
    """Return what a call returns. Raises what it raises, or TimeoutError; its thread is then left behind."""
    return in_thread(call).result(limit_s)
