"""The ranks' agreement on the distance of kept steps, in the store that the job's process group was made with.

For each window there are two keys. The first is the sum of all votes. The second is the distance of the next window: it
is written once, by the first rank whose turn comes in the second half of the window. So all ranks use the same
distance, whatever each computed, and a rank that has not read it waits before the next window: two ranks with
different distances might have no step in common.

The operations take some ten microseconds and run in a thread, because a store may answer late or not at all. If a rank
cannot vote, no rank changes its distance.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec
from torch._C._distributed_c10d import Store

from holdfast.trainer.checkpoint.pace.spacing import Costs, Vote, ballot, outcome

WAITS_S = 5.0
"""Longest time for which a rank waits for the store before a window."""

log = logging.getLogger("holdfast.trainer.checkpoint")


class Objection(NamedTuple):
    """A rank for which a step costs too much."""

    rank: int
    costs: Costs


class Agreed(NamedTuple):
    every: int
    objection: Objection | None = None
    """Objection of the first rank that voted for a wider spacing; None: no wider one was agreed."""


class Agreement(Protocol):
    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        """Give this rank's vote about what follows on this window. It does not wait."""
        ...

    def close(self, window: int, every: int) -> None:
        """Have the votes counted; `every` is the distance in this window. It does not wait."""
        ...

    def result(self, window: int) -> Agreed | None:
        """Return what was agreed; `close` was called. None: that cannot be known, now and later."""
        ...


class Alone:
    """Agreement of a job of one rank: its own vote decides."""

    def __init__(self) -> None:
        self._vote: tuple[Vote, Costs | None] = Vote.SAME, None
        self._every = 1

    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        self._vote = vote, costs

    def close(self, window: int, every: int) -> None:
        self._every = outcome(ballot(self._vote[0]), 1, every)

    def result(self, window: int) -> Agreed:
        vote, costs = self._vote
        self._vote = Vote.SAME, None
        return Agreed(self._every, Objection(0, costs) if vote is Vote.WIDER and costs is not None else None)


class Ballots:
    """The operations in a store. They raise what the store raises; `RuntimeError` as a rule."""

    def __init__(self, store: Store, prefix: str, rank: int, ranks: int) -> None:
        """`prefix` of all keys: the same for all ranks, and of no other generation."""
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._ranks = ranks
        self._closed: deque[int] = deque(maxlen=2)
        """Windows whose keys are still in the store."""

    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        if vote is Vote.WIDER and costs is not None:
            why = msgspec.json.encode(Objection(self._rank, costs)).decode()
            self._store.compare_set(self._key("why", window), "", why)
        self._store.add(self._key("votes", window), ballot(vote))

    def close(self, window: int, every: int) -> int:
        """Count the votes, unless that was done, and return the distance that follows."""
        count = self._store.add(self._key("votes", window), 0)
        found = str(outcome(count, self._ranks, every))
        return int(self._store.compare_set(self._key("every", window), "", found))

    def objection(self, window: int) -> Objection | None:
        """Return the first rank that asked for a wider spacing, and why; on other ranks than 0, and if it cannot be
        read, None.
        """
        why = self._key("why", window)
        with suppress(RuntimeError):
            if self._rank == 0 and self._store.check([why]):
                return msgspec.json.decode(self._store.get(why), type=Objection)
        return None

    def tidy(self, window: int) -> None:
        """Remove what is no longer asked for: all ranks have left the windows before the last when rank 0 is here."""
        if self._rank != 0:
            return
        # Some stores keep what they have. Of one that is gone the next vote learns.
        with suppress(RuntimeError):
            for name in ("votes", "every", "why") if len(self._closed) == self._closed.maxlen else ():
                self._store.delete_key(self._key(name, self._closed[0]))
        self._closed.append(window)

    def _key(self, name: str, window: int) -> str:
        return f"{self._prefix}/{window}/{name}"


class InThread:
    """Ballots beside training."""

    def __init__(self, ballots: Ballots, waits_s: float = WAITS_S) -> None:
        self._ballots = ballots
        self._waits_s = waits_s
        self._to_do: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed: dict[int, Agreed] = {}
        self._changed = threading.Condition()
        self._failure = ""
        self._thread: threading.Thread | None = None

    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        self._do(lambda: self._ballots.vote(window, vote, costs))

    def close(self, window: int, every: int) -> None:
        def close() -> None:
            follows = self._ballots.close(window, every)
            agreed = Agreed(follows, self._ballots.objection(window) if follows > every else None)
            with self._changed:
                self._closed = {window: agreed}
                self._changed.notify_all()
            self._ballots.tidy(window)

        self._do(close)

    def result(self, window: int) -> Agreed | None:
        with self._changed:
            is_known = self._changed.wait_for(lambda: window in self._closed or self._failure, self._waits_s)
            if not is_known:
                self._failure = f"no answer in {self._waits_s:g} s"
            if window in self._closed:
                return self._closed[window]
        log.warning("the distance of kept steps stays what it is: the job's store fails: %s", self._failure)
        return None

    def _do(self, work: Callable[[], None]) -> None:
        if self._failure:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-keep-pace", daemon=True)
            self._thread.start()
            # An interpreter that ends while a thread is in the store's code aborts.
            atexit.register(self.end)
        self._to_do.put(work)

    def end(self) -> None:
        """Wait until nothing is asked of the store any more."""
        if self._thread is not None:
            self._to_do.put(None)
            self._thread.join(self._waits_s)

    def _run(self) -> None:
        while not self._failure and (work := self._to_do.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever the store raises, training goes on
                with self._changed:
                    self._failure = f"{type(error).__name__}: {error}"
                    self._changed.notify_all()
