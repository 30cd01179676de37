"""A buffer between receiving and writing, bounded in number and bytes, read in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a batch."""

    items_max: int = 1000
    """Number of items at which the buffer is full."""
    bytes_max: int = 8_000_000
    """or at this size."""
    wait_s: float = 0.05
    """Longest wait of a batch that does not fill up, from its first item."""


class Buffer(Generic[T]):
    """A queue with many writers and one reader. It holds up to four full batches; then `put` waits."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._full_batch = asyncio.Event()
        self._room = asyncio.Event()
        self._update()

    async def put(self, item: T, size_bytes: int) -> None:
        """Add an item; wait until there is room."""
        while not self._room.is_set():
            await self._room.wait()
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        self._update()

    async def batch(self) -> list[T]:
        """Take the oldest items: at least one, at most a full batch."""
        await self._filled.wait()
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._full_batch.wait()
        except TimeoutError:
            pass
        taken: list[T] = []
        taken_bytes = 0
        while self._items and len(taken) < self._limits.items_max:
            size_bytes = self._items[0][1]
            if taken and taken_bytes + size_bytes > self._limits.bytes_max:
                break
            taken_bytes += size_bytes
            taken.append(self._items.popleft()[0])
        self._bytes -= taken_bytes
        self._update()
        return taken

    def _update(self) -> None:
        count, limits = len(self._items), self._limits
        _set_to(self._filled, count > 0)
        _set_to(self._full_batch, count >= limits.items_max or self._bytes >= limits.bytes_max)
        _set_to(self._room, count < 4 * limits.items_max and self._bytes < 4 * limits.bytes_max)


def _set_to(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
