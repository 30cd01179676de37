"""Ranks that keep one step in so many keep the same ones, in any order of events: a common step is never far.

The choice of steps, the votes and the shelves are production code, over a real store. Here are ranks whose costs
change, each at its own time; store operations that take as long as they like; copies that end late; stores that fail
a rank; deaths, after which a generation goes on from the newest step that all ranks have. Ranks are at most a step
apart, as collectives keep them.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable

import pytest
from torch._C._distributed_c10d import HashStore, Store

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import Seal
from holdfast.trainer.checkpoint.pace.agreement import Agreed, Agreement, Alone, Ballots
from holdfast.trainer.checkpoint.pace.keep_pace import KeepPace
from holdfast.trainer.checkpoint.pace.spacing import EVERY_MAX, WINDOW, Costs, Limit, Samples, Vote, outcome
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from tests.sim.light_segments import LightSegment

STEPS = 40 * WINDOW
SEEDS = 200 if os.environ.get("LONG") else 12
LIMIT = Limit(share=0.02, keep_s=0.0)
COSTS = (0.0, 0.0, 0.01, 0.05, 0.3, 3.0)
NBYTES = 1


class Late:
    """Ballots whose operations are done at some time; a rank that needs a result waits for them."""

    def __init__(self, ballots: Ballots) -> None:
        self._ballots = ballots
        self._to_do: deque[Callable[[], None]] = deque()
        self._closed: dict[int, int] = {}
        self._has_failed = False
        self._may_fail = True

    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        self._may_fail = False
        if not self._has_failed:
            self._to_do.append(lambda: self._ballots.vote(window, vote, costs))

    def close(self, window: int, every: int) -> None:
        def close() -> None:
            self._closed[window] = self._ballots.close(window, every)
            self._ballots.tidy(window)

        if not self._has_failed:
            self._to_do.append(close)

    def result(self, window: int) -> Agreed | None:
        while self._to_do:
            self.do_one()
        self._may_fail = True
        return Agreed(self._closed[window]) if window in self._closed else None

    def do_one(self) -> None:
        if self._to_do:
            self._to_do.popleft()()

    def fail(self) -> None:
        """Have no store from now on. One that fails between the vote and the count leaves a doubt (ADR 58)."""
        self._has_failed |= self._may_fail


class Fed:
    """A meter of costs that the world sets."""

    def __init__(self, samples: Samples, rank: Rank) -> None:
        self._samples = samples
        self._rank = rank

    def begin(self, step: int) -> None:
        self._samples.add(self._rank.keep_s, 1.0)

    def end(self) -> None: ...


class Rank:
    def __init__(self, number: int) -> None:
        self.number = number
        self.shelf = Shelf("", LightSegment)
        self.keep_s = 0.0
        self.passed = 0
        """The last step that is over, `keep` included."""
        self.filling: tuple[Segment, int] | None = None
        self.wants: int | None = None
        """A step whose `keep` waits until the one before is sealed."""
        self.agreement: Agreement | None = None
        self.pace = KeepPace(None, LIMIT)


class World:
    def __init__(self, seed: int, agree: Callable[[Store, str, int, int], Agreement]) -> None:
        self.chance = random.Random(seed)
        self.store = HashStore()
        self.agree = agree
        self.ranks = [Rank(number) for number in range(self.chance.choice((2, 3, 5)))]
        self.generation = 0
        self.widest = deque([1], maxlen=2 * EVERY_MAX)
        """The distances of the last steps."""
        self.kept = set[int]()
        self.seen = set[int]()
        self.start(0)

    def start(self, step: int) -> None:
        """Begin a generation after this step."""
        self.generation += 1
        for rank in self.ranks:
            rank.agreement = self.agree(self.store, f"keep/{self.generation}", rank.number, len(self.ranks))
            rank.pace = KeepPace(rank.agreement, LIMIT, rank.number, lambda samples, rank=rank: Fed(samples, rank))  # type: ignore[misc]
            rank.passed, rank.wants = step, None
            if rank.filling is not None:
                rank.shelf.put_back(rank.filling[0])
                rank.filling = None

    @property
    def reached(self) -> int:
        return max(rank.passed for rank in self.ranks)

    def go_on(self) -> None:
        """Let something happen."""
        rank = self.chance.choice(self.ranks)
        match self.chance.random():
            case draw if draw < 0.5:
                self._step(rank)
            case draw if draw < 0.8:
                self._seal(rank)
            case draw if draw < 0.97:
                if isinstance(rank.agreement, Late):
                    rank.agreement.do_one()
            case draw if draw < 0.9995:
                rank.keep_s = self.chance.choice(COSTS)
            case draw if draw < 0.9996 and isinstance(rank.agreement, Late):
                rank.agreement.fail()
            case draw if draw > 0.9998:
                self._die()

    def _step(self, rank: Rank) -> None:
        if rank.wants is not None or rank.passed > min(each.passed for each in self.ranks):
            return
        step = rank.passed + 1
        if rank.pace.keep(step, lambda: True):
            rank.wants = step
            self._claim(rank)
        else:
            rank.passed = step
        self.widest.append(rank.pace.every)
        self.seen.add(rank.pace.every)

    def _claim(self, rank: Rank) -> None:
        if rank.wants is not None and rank.filling is None:
            rank.filling = rank.shelf.claim(NBYTES), rank.wants
            rank.passed, rank.wants = rank.wants, None

    def _seal(self, rank: Rank) -> None:
        if rank.filling is not None:
            segment, step = rank.filling
            rank.filling = None
            sealed = SealedStep(generation=self.generation, step=step)
            seal = Seal(nbytes=NBYTES, chunks=(step,), notes=())
            rank.shelf.seal(segment, SealedContents(sealed=sealed, index=b"", objects=b"", seal=seal))
            self._claim(rank)

    def _die(self) -> None:
        """End all ranks, and go on from the newest step that all have."""
        common = self.common()
        if common is None:
            return
        for rank in self.ranks:
            rank.shelf.keep_only(Cut(generation=self.generation + 1, at_ns=self.generation, kept=common))
        self.start(common.step)

    def common(self) -> SealedStep | None:
        found = set.intersection(*(set(rank.shelf.steps()) for rank in self.ranks))
        return max(found, default=None)

    def check(self) -> None:
        if self.reached <= 2:
            return  # a rank may have been about to seal the first
        common = self.common()
        assert common is not None, f"no step that all ranks have: {[rank.shelf.steps() for rank in self.ranks]}"
        distance = self.reached - common.step
        assert distance <= 2 * max(self.widest), f"the newest step that all ranks have is {distance} steps old"


def run(seed: int, agree: Callable[[Store, str, int, int], Agreement]) -> World:
    world = World(seed, agree)
    while world.reached < STEPS:
        world.go_on()
        world.check()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_there_is_always_a_step_that_all_ranks_have_and_it_is_near(seed: int) -> None:
    run(seed, lambda *of: Late(Ballots(*of)))


def test_the_distances_of_these_worlds_change_in_both_directions() -> None:
    seen = set[int]()
    for seed in range(4):
        seen |= run(seed, lambda *of: Late(Ballots(*of))).seen
    assert {1, 2, 4, 8} <= seen


class OwnCount(Ballots):
    """Each rank goes by what it has counted itself."""

    def close(self, window: int, every: int) -> int:
        return outcome(self._store.add(self._key("votes", window), 0), self._ranks, every)


def run_some(agree: Callable[[Store, str, int, int], Agreement]) -> None:
    for seed in range(10):
        run(seed, agree)


def test_ranks_that_count_at_different_times_would_lose_all_common_steps() -> None:
    with pytest.raises(AssertionError, match="step that all ranks have"):
        run_some(lambda *of: Late(OwnCount(*of)))


def test_ranks_that_choose_by_themselves_would_lose_all_common_steps() -> None:
    with pytest.raises(AssertionError, match="step that all ranks have"):
        run_some(lambda *of: Alone())
