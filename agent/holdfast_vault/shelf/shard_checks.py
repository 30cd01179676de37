"""Checks that a shard in memory still matches its seal, done by several threads and ahead of the request.

A rank whose connection ends will come back as another process and ask for its newest step, some tens of milliseconds
later at the earliest. That step is checked meanwhile. The result serves the first request, and only for a short time:
the older it is, the less it proves about the present bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from weakref import WeakKeyDictionary

from holdfast.node.vault.seals import chunk_hash
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf

GOOD_S = 5.0
"""Maximum age of a check. In these seconds bytes may decay unseen, as they may in the rank's own memory afterwards."""
THREADS_MAX = 8
"""They wait for memory more than they compute: from some number on, more of them do not read faster."""
_NICE = 10


class ShardCheck:
    """One comparison of every chunk of a shard. Each thread that waits for the result takes part in it."""

    def __init__(self, segment: Segment, contents: SealedContents) -> None:
        """Prepare the check; the caller and all threads that take part hold the segment."""
        self.contents = contents
        self._ended_at: float | None = None
        self._memory = segment.memory
        self._lock = threading.Lock()
        self._numbers = iter(range(len(contents.seal.chunks)))
        self._left = len(contents.seal.chunks)
        self._damaged: list[int] = []
        self._ended = threading.Event()
        self._end_if_done()

    def take_part(self) -> None:
        while (number := self._take()) is not None:
            is_whole = False
            try:
                is_whole = chunk_hash(self._memory, number) == self.contents.seal.chunks[number]
            finally:
                # Threads that wait for the result must get one, and must not take an unreadable chunk for a good one.
                with self._lock:
                    self._left -= 1
                    if not is_whole:
                        self._damaged.append(number)
                    self._end_if_done()

    def result(self) -> tuple[int, ...]:
        """Return the damaged chunks, as soon as all have been looked at."""
        self._ended.wait()
        return tuple(sorted(self._damaged))

    def is_old(self, now: float) -> bool:
        return self._ended_at is not None and now - self._ended_at > GOOD_S

    def _take(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _end_if_done(self) -> None:
        if not self._left:
            self._ended_at = time.monotonic()
            self._ended.set()


class ShardChecks:
    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        self._lock = threading.Lock()
        self._begun: WeakKeyDictionary[Segment, ShardCheck] = WeakKeyDictionary()

    def ahead(self, shelf: Shelf) -> threading.Thread:
        """Check the newest step of a rank that has ended; the thread that does it."""
        thread = threading.Thread(target=self._ahead, args=(shelf,), daemon=True)
        thread.start()
        return thread

    def damaged(self, segment: Segment, contents: SealedContents) -> tuple[int, ...]:
        """Return the chunks of a shard that are not what was sealed. The caller holds the segment."""
        with self._lock:
            check = self._begun.pop(segment, None)
        if check is None or check.contents is not contents or check.is_old(time.monotonic()):
            check = ShardCheck(segment, contents)
        # Without more threads it takes longer, and that is all.
        with contextlib.suppress(RuntimeError):
            for _ in range(min(self._threads, len(contents.seal.chunks)) - 1):
                threading.Thread(target=check.take_part, daemon=True).start()
        check.take_part()
        return check.result()

    def forget(self, segment: Segment) -> None:
        """Forget a check that began before the segment was repaired."""
        with self._lock:
            self._begun.pop(segment, None)

    def _ahead(self, shelf: Shelf) -> None:
        # What the rank was saving when it ended is sealed, or given up, before its turn is over.
        with shelf.turn:
            newest = next(iter(shelf.steps()), None)
        if newest is None:
            return
        with shelf.holding(newest) as held:
            if held is None or held[0].absent:
                return
            check = ShardCheck(*held)
            with self._lock:
                self._begun[held[0]] = check
            # The restart itself needs the cores more.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            check.take_part()
            check.result()
