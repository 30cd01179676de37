"""The assignment of chunks to sources: each source takes the next chunk when it has room, so fast ones give more.

In FT-HSDP (Fig. 7) a recovering rank fetches from all that have a copy at once. If one source cannot give a chunk
undamaged, or goes away before giving it, another one gives it. The cost does not grow with the number of sources that
lack most chunks: each replica has only a part of a shared copy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Generic, TypeVar

TRIES = 2
"""Times that a source may give the same chunk damaged: the first time the network may have damaged it."""

S = TypeVar("S")


class ChunkQueue(Generic[S]):
    """The chunks that are still missing, and who is asked for them. A source may give any until it lacks some."""

    def __init__(self, numbers: Iterable[int], sources: Iterable[S]) -> None:
        self._open = dict.fromkeys(numbers)
        # What a source may still be asked for; that a chunk is not open any more is seen when its turn comes.
        self._next: dict[S, deque[int]] = {source: deque(self._open) for source in sources}
        self._owed: dict[S, set[int]] = {source: set() for source in self._next}
        self._lacking: dict[S, set[int]] = {source: set() for source in self._next}
        self._givers = dict.fromkeys(self._open, len(self._next))
        self._without_giver = set(self._open) if not self._next else set[int]()
        self._failures: Counter[tuple[S, int]] = Counter()
        self.given: Counter[S] = Counter()

    def take(self, source: S) -> int | None:
        """Return a chunk to ask this source for; None: there is none just now."""
        waiting = self._next[source]
        while waiting:
            number = waiting.popleft()
            if number in self._open and number not in self._lacking[source]:
                del self._open[number]
                self._owed[source].add(number)
                return number
        return None

    def done(self, source: S, number: int) -> None:
        self._owed[source].discard(number)
        self._givers.pop(number, None)
        self._without_giver.discard(number)
        self.given[source] += 1

    def failures(self, source: S, number: int) -> int:
        """Return how often this source gave the chunk damaged."""
        return self._failures[source, number]

    def spoiled(self, source: S, number: int) -> None:
        self._failures[source, number] += 1
        if self._failures[source, number] >= TRIES:
            self.lacks(source, [number])
        else:
            self._reopen(source, [number])

    def lacks(self, source: S, numbers: Iterable[int]) -> None:
        new = [number for number in numbers if number not in self._lacking[source]]
        self._lacking[source].update(new)
        self._lose_giver(new)
        self._reopen(source, new)

    def put_back(self, source: S) -> None:
        """Reopen the chunks that this source owes: its connection has ended."""
        self._reopen(source, sorted(self._owed[source]))

    def leave(self, source: S) -> None:
        self.put_back(source)
        lacking = self._lacking.pop(source)
        self._lose_giver([number for number in self._givers if number not in lacking])
        del self._owed[source], self._next[source]

    @property
    def missing(self) -> list[int]:
        return sorted(self._givers)

    @property
    def is_whole(self) -> bool:
        return not self._givers

    @property
    def is_quiet(self) -> bool:
        """True if nothing is on its way."""
        return not any(self._owed.values())

    @property
    def is_hopeless(self) -> bool:
        """True if chunks are missing and no source can give any of them."""
        return bool(self._givers) and len(self._without_giver) == len(self._givers)

    def _reopen(self, source: S, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._owed[source]:
                self._owed[source].discard(number)
                self._open[number] = None
                for other, waiting in self._next.items():
                    if number not in self._lacking[other]:
                        waiting.appendleft(number)

    def _lose_giver(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._givers:
                self._givers[number] -= 1
                if not self._givers[number]:
                    self._without_giver.add(number)
