"""Random jobs lose machines and parallel groups, in the middle of everything: what the plan promises can be restored.

Not tried: vaults that hear at different times that copies are sent more rarely, when a machine may be lost in vain.

A failing seed is printed with its story; `pytest tests/sim/test_lost_memory.py --seed N` runs that one alone.
`HOLDFAST_LOSSES=N` runs N seeds instead of the usual number.
"""

from __future__ import annotations

import os
import random

import pytest

from holdfast.node.vault.messages import SealedStep
from holdfast_ckpt.plan.backup_plan import BackupStrategy, Protects
from tests.sim.memory_checker import Promise, check_choice, check_left, check_restored, check_whole
from tests.sim.memory_job import Job
from tests.sim.memory_topologies import groups_of
from tests.sim.memory_vaults import LeftBehind

HISTORIES = 400 if "HOLDFAST_LONG" in os.environ else 50
STRATEGIES = (*[BackupStrategy.CROSS_GROUP] * 6, BackupStrategy.RING, BackupStrategy.PAIRS)


class Failed(AssertionError):
    """The seed and the story of a history that went wrong."""


class Losses:
    """What happens to one job: it is placed, trains, loses something, goes on, and so forth."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(~seed)
        self.job = Job(seed, self.chance.choice(STRATEGIES))
        self._names = iter(f"n{number}" for number in range(10_000))
        self._away: list[str] = []

    def run(self) -> None:
        job = self.job
        job.place([next(self._names) for _ in range(job.topology.nnodes)])
        job.go_on(None)
        for _ in range(self.chance.choice((1, 2, 2, 3))):
            job.train(self.chance.randint(1, 60) * len(job.ranks))
            self._fail(self._lost())
        job.train(len(job.ranks))

    def _lost(self) -> frozenset[int]:
        """The node ranks that are lost now: what the plan protects, or anything if nothing is promised now."""
        job, chance = self.job, self.chance
        assert job.plan is not None
        kind = chance.random()
        if kind < 0.1:
            return frozenset()
        if not job.habits.keeps_up and kind < 0.3:
            return frozenset(chance.sample(range(job.topology.nnodes), 2))
        groups = groups_of(job.topology)
        if kind < 0.6 and groups and job.plan.protects == Protects.GROUP:
            return chance.choice(groups)
        return frozenset({chance.randrange(job.topology.nnodes)})

    def _fail(self, lost: frozenset[int]) -> None:
        job, chance = self.job, self.chance
        job.stop()
        is_shuffled = chance.random() < 0.2
        # Who finds copies of a rank that it had not before asks nobody for newer ones.
        promise = Promise(job, is_in_place=not lost and not is_shuffled)
        job.story.append(f"lost: nodes {sorted(lost)}; promised: {promise.at_least}")
        job.late.clear()
        nodes, gone = list(job.nodes), []
        for number in sorted(lost):
            is_evicted = chance.random() < 0.25
            if not is_evicted:
                gone.append(nodes[number])
            nodes[number] = self._replacement(nodes[number], is_evicted)
        job.lose(gone)
        for _ in range(chance.choice((0, 0, 5, 50))):
            # Vaults do not stop until they hear of it.
            if living := list(job.network.vaults.values()):
                chance.choice(living).work(chance.choice((1, 99)))
        if is_shuffled:
            chance.shuffle(nodes)
        at_most = None
        if chance.random() < 0.1 and job.past:
            # Numbers are bad: what is newer must never come back. What is older is promised of certified steps only.
            at_most = chance.choice(job.past[-3:]).step
            job.past = [sealed for sealed in job.past if sealed.step <= at_most]
            promise.at_least = None
            job.story.append(f"bad numbers after {at_most}")
        self._restart(nodes, promise, at_most)

    def _replacement(self, node: str, is_evicted: bool) -> str:
        """A standby: a new node, one that the job had before, or the same one with nothing in its memory."""
        chance = self.chance
        if not is_evicted and chance.random() < 0.2:
            return node
        known = self._away.pop(0) if self._away and chance.random() < 0.5 else next(self._names)
        if is_evicted:
            self._away.append(node)
        return known

    def _restart(self, nodes: list[str], promise: Promise, at_most: int | None) -> None:
        job, chance = self.job, self.chance
        while True:
            job.place(nodes, at_most)
            check_left(job, promise)
            chosen = self._restored(job.common(at_most))
            check_choice(job, promise, chosen)
            if chance.random() > 0.1:
                job.go_on(chosen)
                return
            # Ended once more, before all ranks have said that they go on.
            job.go_on(chosen, share=chance.random())
            promise = Promise(job, is_in_place=at_most is None)

    def _restored(self, common: list[SealedStep]) -> SealedStep | None:
        """The newest step that all ranks can use."""
        for sealed in common:
            check_whole(self.job, sealed)
            try:
                self.job.fetch(sealed)
            except LeftBehind as error:
                self.job.story.append(f"  left behind: {error}")
                continue
            check_restored(self.job, sealed)
            return sealed
        return None


def history(seed: int) -> Job:
    """Raises Failed."""
    losses = Losses(seed)
    try:
        losses.run()
    except Exception as error:
        story = "\n".join(losses.job.story)
        raise Failed(f"{story}\n{error!r}\nseed {seed}") from error
    return losses.job


@pytest.mark.timeout(1500)
def test_what_is_promised_can_be_restored(request: pytest.FixtureRequest) -> None:
    only = request.config.getoption("--seed")
    for seed in [only] if only is not None else range(int(os.environ.get("HOLDFAST_LOSSES", HISTORIES))):
        history(seed)
