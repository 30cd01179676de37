"""A job whose memory is lost in parts: ranks that save, vaults that send, failures, generations that go on.

Plans, orders, shelves, choices and comparisons are production code; when what happens is drawn from a seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from holdfast.events import GenerationStarted
from holdfast.ids import named_id
from holdfast.node.vault.messages import SealedStep
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.trainer.checkpoint.memory_tier import STEPS_SHARED_MAX
from holdfast_ckpt.plan import backups
from holdfast_ckpt.plan.backup_plan import BackupStrategy
from holdfast_ckpt.plan.records import HeldShards, HeldState, JobBackups
from holdfast_ckpt.plan.shard_locations import ShardLocations
from holdfast_vault.assignments import Assignment
from holdfast_vault.shelf.segments import SealedContents
from tests.sim.light_segments import LightSegment, Shards
from tests.sim.memory_topologies import random_topology
from tests.sim.memory_vaults import Network, Vault
from tests.sim.network import EPOCH

T = TypeVar("T", int, str)

JOB = "job"
TOKEN = "secret"
ACTIONS_MAX = 400
"""For each rank and generation: more, and something waits for ever."""


class Habits(NamedTuple):
    """What does not change during a history."""

    keeps_up: bool
    """A step is sent by all before the next one that is to be sent is sealed by any: so much the shelf's docs ask."""
    sends: float
    """How often it is a vault's turn, and not a rank's."""
    steps_wanted: int
    stocks: bool
    tight: bool


class Job:
    """One history."""

    def __init__(self, seed: int, strategy: BackupStrategy = BackupStrategy.CROSS_GROUP) -> None:
        self.chance = chance = random.Random(seed)
        self.topology = random_topology(chance)
        self.shards = Shards(seed, self.topology)
        self.habits = Habits(
            keeps_up=chance.random() < 0.75,
            sends=chance.choice((0.3, 0.5, 0.7)),
            steps_wanted=chance.choice((2, 2, 3)),
            stocks=chance.random() < 0.5,
            tight=chance.random() < 0.4,
        )
        self.policy = CheckpointPolicy(
            backup_strategy=strategy.value,
            backup_every=chance.choice((1, 1, 1, 2, 3)),
            replicas_max=chance.choice((1, 2, 3, 8, 8)),
        )
        self.story: list[str] = []
        self.network = Network(chance, self.story.append)
        self.network.reported = self._note_report
        self.generation = 0
        self.nodes: list[str] = []
        self.orders: list[BackupOrder] = []
        self.late: list[BackupOrder] = []
        self.plan: JobBackups | None = None
        self.past: list[SealedStep] = []
        """The steps that the job has behind it, those that it left out of the count."""
        self.kept: SealedStep | None = None
        self.sealed: dict[int, SealedStep | None] = {}
        self._begun: dict[int, int] = {}
        self._filling: dict[int, LightSegment] = {}
        self._holdings = ShardLocations()
        self._at_ns = 0
        self._slow = chance.randrange(10)
        habits, policy = self.habits, self.policy
        self.story.append(f"{self.topology}, {self.shards.alike}, {habits}, every {policy.backup_every}")
        self.story.append(f"at most {policy.replicas_max} replicas")

    @property
    def ranks(self) -> range:
        return range(self.topology.mesh.world_size)

    def vault_of(self, rank: int) -> Vault:
        return self.network.vaults[self.nodes[self.topology.node_rank_of(rank)]]

    def order_of(self, rank: int) -> BackupOrder:
        return self.orders[self.topology.node_rank_of(rank)]

    # --- generations ------------------------------------------------------------------------------

    def place(self, nodes: list[str], at_most: int | None = None) -> None:
        """A generation is to run on these nodes, of which new ones have nothing.

        `at_most`: no later step may be gone on from, for numbers went bad after it.
        """
        self.generation += 1
        self.nodes, habits = nodes, self.habits
        for node in nodes:
            if node not in self.network.vaults:
                self.network.vaults[node] = Vault(
                    node, self.network, steps_wanted=habits.steps_wanted, stocks=habits.stocks, tight=habits.tight
                )
        at = EPOCH + timedelta(minutes=self.generation)
        event = GenerationStarted(
            id=named_id(at, JOB),
            at=at,
            source="sim",
            job=JOB,
            generation=self.generation,
            reason="sim",
            nodes=tuple(nodes),
            world_size=len(self.ranks),
            nproc_per_node=self.topology.ranks_per_node,
            mesh=str(self.topology.mesh),
            restore_at_most=at_most,
            submitted_at=EPOCH,
            vaults=tuple(f"{node}:7000" for node in nodes),
        )
        plan = backups.plan_generation(self.plan, event, self.policy, self._holdings.of_job(JOB), event.id)
        assert plan is not None
        self.plan, self.orders = plan, backups.orders_of(plan)
        self.story.append(f"generation {self.generation} on {' '.join(nodes)}: {plan.protects}, {plan.reason}")
        self.late = []
        for order in self.chance.sample(self.orders, len(self.orders)):
            # A rank that has nothing here waits for the order.
            can_wait = all(self.vault_of(rank).recent(rank, self.generation) for rank in order.ranks)
            if can_wait and self.chance.random() < 0.2:
                self.late.append(order)
            else:
                self.deliver(order)

    def deliver(self, order: BackupOrder) -> None:
        self.network.vaults[order.node].assign(Assignment(order, TOKEN))

    def common(self, at_most: int | None = None) -> list[SealedStep]:
        """The steps that all ranks find, newest first; as `checkpoint_memory` agrees on them."""

        def may_be(sealed: SealedStep) -> bool:
            return at_most is None or sealed.step <= at_most

        told: list[set[SealedStep]] = []
        for rank in self.ranks:
            here = self.vault_of(rank).steps(rank, self.generation, at_most)
            here = sorted(here, key=lambda sealed: (may_be(sealed), sealed), reverse=True)
            told.append(set(here[:STEPS_SHARED_MAX]))
        return sorted(filter(may_be, set.intersection(*told)), reverse=True)

    def fetch(self, sealed: SealedStep) -> None:
        """All ranks get it; raises NotThere, LeftBehind."""
        for rank in self.chance.sample(self.ranks, len(self.ranks)):
            if not self.vault_of(rank).shelf(rank).has_whole(sealed):
                self._deliver_to(rank)
                self.vault_of(rank).fetch(rank, sealed)

    def _deliver_to(self, rank: int) -> None:
        for order in [order for order in self.late if rank in order.ranks]:
            self.late.remove(order)
            self.deliver(order)

    def go_on(self, kept: SealedStep | None, share: float = 1.0) -> None:
        """Ranks say that they go on from there; a `share` of them comes to that."""
        self.story.append(f"  goes on from {_short(kept)}")
        for rank in self.chance.sample(self.ranks, len(self.ranks)):
            if self.chance.random() < share:
                self._at_ns += 1
                self.vault_of(rank).go_on(rank, self.generation, self._at_ns, kept)
        self.kept = kept
        if share == 1.0:
            self.past = self.past[: self.past.index(kept) + 1] if kept is not None else []
        first = kept.step if kept is not None else 0
        self.sealed = dict.fromkeys(self.ranks, kept)
        self._begun = dict.fromkeys(self.ranks, first)
        self._filling = {}

    # --- training ---------------------------------------------------------------------------------

    def train(self, actions: int) -> None:
        """So many things happen, in a random order; where copies keep up, until the first are complete."""
        if self.habits.keeps_up:
            self._deliver_late()
        for number in range(ACTIONS_MAX * len(self.ranks)):
            if number >= actions and (self.is_armed() or not self.habits.keeps_up):
                return
            self._act()
        raise AssertionError("copies do not come to an end")

    def _act(self) -> None:
        chance = self.chance
        if self.late and chance.random() < 0.02:
            self._deliver_late()
        if chance.random() < self.habits.sends:
            busy = [node for node in self.nodes if self.network.vaults[node].has_work()]
            if busy:
                vault = self.network.vaults[self._drawn(busy)]
                vault.work(chance.choice((1, 2, 99)), tells=chance.random() < 0.5)
            return
        # In step with each other by their collectives, ranks are no further apart than that.
        last = min(self._begun.values())
        may_seal = {step: self._may_seal(step) for step in {self._begun[rank] for rank in self._filling}}
        ready = [
            rank for rank, step in self._begun.items() if (may_seal[step] if rank in self._filling else step == last)
        ]
        if ready:
            rank = self._drawn(ready)
            (self._seal if rank in self._filling else self._begin)(rank)

    def _drawn(self, ready: Sequence[T]) -> T:
        """Some are slower than others."""
        first = self.chance.choice(ready)
        return self.chance.choice(ready) if zlib.crc32(str(first).encode()) % 5 == self._slow else first

    def _deliver_late(self) -> None:
        while self.late:
            self.deliver(self.late.pop())

    def _begin(self, rank: int) -> None:
        self._begun[rank] += 1
        sealed = SealedStep(generation=self.generation, step=self._begun[rank])
        self._filling[rank] = self.vault_of(rank).claim(rank, self.shards.of(rank, sealed).nbytes)

    def _seal(self, rank: int) -> None:
        sealed = SealedStep(generation=self.generation, step=self._begun[rank])
        segment, seal = self._filling.pop(rank), self.shards.of(rank, sealed)
        segment.data = dict(enumerate(seal.chunks))
        contents = SealedContents(sealed=sealed, index=b"", objects=b"", seal=seal)
        self.vault_of(rank).seal(rank, segment, contents)
        self.sealed[rank] = sealed
        if sealed not in self.past:
            self.past.append(sealed)
        self.story.append(f"  rank {rank} seals {_short(sealed)}")

    # --- what was sent ----------------------------------------------------------------------------

    def is_to_be_sent(self, sealed: SealedStep) -> bool:
        return sealed == self.kept or sealed.step % self.policy.backup_every == 0

    def sent_by_all(self, sealed: SealedStep) -> bool:
        """Whether each rank's keeper of this generation has it."""
        return all(sealed in self.vault_of(rank).sent_now(rank) for rank in self.ranks)

    def is_armed(self) -> bool:
        """Whether there is a step that all ranks have sent in this generation."""
        return any(self.sent_by_all(sealed) for sealed in self.past[-6:])

    def _may_seal(self, step: int) -> bool:
        # Copies are made while training goes on: a rank may seal a step before another has sealed the one before. Not
        # where memory is tight: the step before that would be needed, and is not kept.
        if self.habits.tight and any(self.sealed_step(rank) < step - 1 for rank in self.ranks):
            return False
        if not self.habits.keeps_up or step % self.policy.backup_every:
            return True
        before = [each for each in self.past if self.is_to_be_sent(each) and each.step < step]
        before = [each for each in before if each == self.kept or each.generation == self.generation]
        return not before or self.sent_by_all(before[-1])

    def sealed_step(self, rank: int) -> int:
        """The number of the last step that a rank has sealed."""
        sealed = self.sealed[rank]
        return sealed.step if sealed is not None else 0

    def _note_report(self, order: BackupOrder, sealed: SealedStep) -> None:
        """What the coordinator hears of copies, now and then."""
        if order.generation == self.generation and order.keeper is not None and self.chance.random() < 0.6:
            held = HeldShards(
                job=JOB,
                node_rank=order.node_rank,
                node=order.node,
                keeper=order.keeper.node,
                step=sealed.step,
                generation=sealed.generation,
                shard_bytes=1,
                state=HeldState.BACKED_UP,
                reported_at=EPOCH,
            )
            self._holdings.record(held)

    # --- failures ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """All ranks end. What was being copied is completed or not; vaults send on until they hear of it."""
        for rank, segment in list(self._filling.items()):
            if self._may_seal(self._begun[rank]) and self.chance.random() < 0.3:
                self._seal(rank)
            elif self.nodes[self.topology.node_rank_of(rank)] in self.network.vaults:
                self.vault_of(rank).shelf(rank).put_back(segment)
        self._filling = {}

    def lose(self, nodes: list[str]) -> None:
        """These machines are gone."""
        for node in nodes:
            self.network.vaults.pop(node).stop_sending()


def _short(sealed: SealedStep | None) -> str:
    return f"{sealed.generation}:{sealed.step}" if sealed is not None else "nothing"
