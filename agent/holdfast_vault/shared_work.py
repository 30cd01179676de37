"""Work that several ask for at the same time is done once, and all of them get what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedWork(Generic[K, V]):
    """The work in progress by its key. No result is kept afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[K, Future[V]] = {}

    def do(self, key: K, work: Callable[[], V]) -> V:
        """Return or raise the result of `work`, done by this thread or by one that asked before."""
        with self._lock:
            future = self._running.get(key)
            is_mine = future is None
            if future is None:
                future = self._running[key] = Future()
        if is_mine:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again by `result`, here as in all who wait
                future.set_exception(error)
            finally:
                with self._lock:
                    del self._running[key]
        return future.result()
