"""Calls that may never return, each in a thread that can be abandoned.

The event loop's own threads are joined at exit, so a hanging one would keep the agent from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class StillRunning(Exception):
    """The call, or an earlier one, has not returned within its limit. `for_s` is the time since it began."""

    def __init__(self, for_s: float) -> None:
        super().__init__(f"no answer for {for_s:.0f} s")
        self.for_s = for_s


class Abandonable(Generic[T]):
    """Runs a function in a thread, one call at a time."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self._name = name
        self._function = function
        self._out: asyncio.Future[T] | None = None
        self._began_s = 0.0

    async def call(self, limit_s: float) -> T:
        """Return the result of this call, or of an earlier one that ends only now. Raises StillRunning."""
        if self._out is None:
            self._out = self._begin()
            self._began_s = time.monotonic()
        done, _ = await asyncio.wait([self._out], timeout=limit_s)
        if not done:
            raise StillRunning(time.monotonic() - self._began_s)
        out, self._out = self._out, None
        return out.result()

    def _begin(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = self._function()
            except Exception as raised:  # noqa: BLE001
                error = raised
            except BaseException as raised:  # noqa: BLE001
                # SystemExit, for instance: raised in the loop, it would end the agent.
                error = RuntimeError(f"the call raised {raised!r}")
            # The loop may be closed when the call returns.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, result, error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future
