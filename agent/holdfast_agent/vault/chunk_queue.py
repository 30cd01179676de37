"""Which chunk is asked of which source: each takes the next one when it has room, so the fast ones give more.

FT-HSDP (Fig. 7) has those who recover fetch from all that have a copy at once. A chunk that one source cannot give
whole is another's to give, and so is what a source that went away still owed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Generic, TypeVar

TRIES = 2
"""How often a source may give the same chunk damaged: the first time it may have been on the way."""

S = TypeVar("S")


class ChunkQueue(Generic[S]):
    """The chunks that are still missing, and who is asked for them."""

    def __init__(self, numbers: Iterable[int], sources: Iterable[S]) -> None:
        self._open = deque(numbers)
        self._owed: dict[S, set[int]] = {source: set() for source in sources}
        self._failures: Counter[tuple[S, int]] = Counter()
        self.given: Counter[S] = Counter()

    def take(self, source: S) -> int | None:
        """A chunk to ask this source for; None: there is none just now."""
        for number in self._open:
            if self._may_give(source, number):
                self._open.remove(number)
                self._owed[source].add(number)
                return number
        return None

    def done(self, source: S, number: int) -> None:
        """It came, and is whole."""
        self._owed[source].discard(number)
        self.given[source] += 1

    def spoiled(self, source: S, number: int) -> None:
        """It came, and is damaged."""
        self._owed[source].discard(number)
        self._failures[source, number] += 1
        self._open.appendleft(number)

    def lacks(self, source: S, number: int) -> None:
        """This source does not have it."""
        self._owed[source].discard(number)
        self._failures[source, number] = TRIES
        self._open.appendleft(number)

    def put_back(self, source: S) -> None:
        """What this source owes will not come over the connection that it was asked on."""
        self._open.extendleft(sorted(self._owed[source], reverse=True))
        self._owed[source].clear()

    def leave(self, source: S) -> None:
        """This source gives nothing more."""
        self.put_back(source)
        del self._owed[source]

    @property
    def missing(self) -> list[int]:
        """The chunks that are not here."""
        return sorted([*self._open, *(number for owed in self._owed.values() for number in owed)])

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is here."""
        return not self._open and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not any(self._owed.values())

    @property
    def is_hopeless(self) -> bool:
        """Whether there is a chunk that nobody can give."""
        return any(not any(self._may_give(source, number) for source in self._owed) for number in self._open)

    def _may_give(self, source: S, number: int) -> bool:
        return self._failures[source, number] < TRIES
