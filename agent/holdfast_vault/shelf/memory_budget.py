"""The memory that all shelves of a node may take together, and what is given back when it is taken."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet

from holdfast.node.proc.machine_memory import available_bytes
from holdfast_vault.shelf.segments import Segment, bytes_taken
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.wanted_steps import SpareMemory, given_back


class MemoryBudget:
    """A limit of `nbytes_max` bytes on the vault's memory; 0: what the machine has."""

    def __init__(self, nbytes_max: int, shelves: Callable[[], Sequence[tuple[Shelf, bool]]]) -> None:
        """`shelves` gives all there are, and of each whether its rank's copies are kept elsewhere by now."""
        self._nbytes_max = nbytes_max
        self._shelves = shelves
        self._changed = threading.Condition()
        # Counts every existing segment: one that no shelf has any more may still be read.
        self._made: WeakSet[Segment] = WeakSet()
        self._promised = 0

    def make(self, name: str, nbytes: int, absent: frozenset[int] = frozenset(), *, is_fresh: bool = False) -> Segment:
        """Return a new segment, with no memory for its `absent` chunks, nor, if `is_fresh`, yet for the others. Raises
        OSError (ENOMEM, ENOSPC): there is no memory for it but what a recovery may need.
        """
        taken = bytes_taken(nbytes, absent)
        with self._changed:
            # What others are just making counts twice, as promised and as taken: it may do when they are through.
            self._changed.wait_for(lambda: not self._promised or self._missing(taken) <= 0)
            self._keep_limit(taken)
            if (missing := self._missing(taken)) > 0:
                # Not the other ranks' unneeded steps: ranks short of memory would take them from each other every step.
                left = [(shelf, is_left) for shelf, is_left in self._shelves() if is_left]
                if not self._give_back(missing, left):
                    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self._promised += taken
        segment: Segment | None = None
        try:
            segment = Segment(name, nbytes, absent, is_fresh=is_fresh)
            return segment
        finally:
            with self._changed:
                self._promised -= taken
                if segment is not None:
                    self._made.add(segment)
                self._changed.notify_all()

    def count(self, segment: Segment) -> None:
        """Count a segment that was made elsewhere."""
        with self._changed:
            self._made.add(segment)

    def _missing(self, nbytes: int) -> int:
        return nbytes + self._promised + sum(each.nbytes_to_come for each in self._made) - available_bytes()

    def _keep_limit(self, nbytes: int) -> None:
        if not self._nbytes_max:
            return
        missing = self._promised + sum(each.nbytes_taken for each in self._made) + nbytes - self._nbytes_max
        if missing > 0 and not self._give_back(missing, self._shelves()):
            raise OSError(errno.ENOMEM, f"the limit of {self._nbytes_max} bytes for checkpoints in memory is reached")

    def _give_back(self, nbytes: int, shelves: Sequence[tuple[Shelf, bool]]) -> bool:
        there = [(shelf, each, is_left) for shelf, is_left in shelves for each in shelf.spares(is_left=is_left)]
        spares = [
            SpareMemory(
                segment.contents.sealed if segment.contents else None,
                segment.nbytes_taken,
                number,
                is_floor=shelf.is_floor(segment),
            )
            for number, (shelf, segment, _) in enumerate(there)
        ]
        chosen = given_back(spares, nbytes)
        if chosen is None:
            return False
        given = [there[spare.number] for spare in chosen]
        # What was spare may have been taken meanwhile: then there is no room now, and the next save asks again.
        return all(shelf.give_back(segment, is_left=is_left) for shelf, segment, is_left in given)
