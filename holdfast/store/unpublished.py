"""The unpublished messages of an outbox with one writer, as that writer knows them: a message is published as soon as
its transaction is committed, and is not read back first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from holdfast.bus import Message

KNOWN_MAX = 500
"""With more, as after a while without a bus, they are read from the database."""
READ_AGAIN_S = 5.0
"""Time after which they are read again: somebody may have changed the outbox by hand."""


class Unpublished:
    """Messages of the outbox that are not published yet, cached in memory.

    The cache is dropped when the outcome of a commit is unknown, and after `READ_AGAIN_S` seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, Message] | None = None
        """Unpublished messages by their position in the outbox; None: they have to be read."""
        self._read_at = 0.0
        self._open = 0
        """Transactions that have emitted, and whose end is not known yet."""
        self._ends = 0

    def first(self, limit: int) -> list[tuple[int, Message]] | None:
        """Return the oldest ones, in order; None if they have to be read."""
        if self._known is None or len(self._known) > KNOWN_MAX or self._clock() - self._read_at >= READ_AGAIN_S:
            self._known = None
            return None
        return sorted(self._known.items(), key=lambda item: item[0])[:limit]

    def reading(self) -> int | None:
        """Return what `read` needs, before they are read."""
        return None if self._open else self._ends

    def read(self, reading: int | None, found: Collection[tuple[int, Message]], limit: int) -> None:
        """Take what was read, if that is all, and no transaction ended meanwhile: it may or may not be among that."""
        if reading == self._ends and not self._open and len(found) < limit:
            self._known, self._read_at = dict(found), self._clock()

    def emitting(self) -> None:
        """Note that a transaction emits, before it does."""
        self._open += 1

    def committed(self, emitted: Collection[tuple[int, Message]]) -> None:
        """Add what a transaction has emitted."""
        self._end()
        if self._known is not None:
            self._known.update(emitted)

    def failed(self) -> None:
        """Note that a transaction which emitted has failed; its commit may have happened."""
        self._end()
        self._known = None

    def published(self, positions: Collection[int]) -> None:
        if self._known is not None:
            for position in positions:
                self._known.pop(position, None)

    def changed(self) -> None:
        """Drop the cache: other messages are unpublished now."""
        self._ends += 1
        self._known = None

    def _end(self) -> None:
        self._open -= 1
        self._ends += 1
