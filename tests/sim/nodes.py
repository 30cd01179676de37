"""Simulated nodes: agents that keep the contract of the real ones, ranks that step, die, and wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast import desired, events
from holdfast.desired import NodeDesired
from holdfast.events import CheckResult, Event, NodeFacts, RankProcess
from holdfast.ids import uuid7
from tests.sim.network import World

E = TypeVar("E", bound=Event)
STEP_S = 0.5
LAST_STEP = 100


class Training:
    """The progress of one job: a step is made when all ranks of one generation are alive together."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.saved_step = -1
        self.ran: dict[tuple[int, int], str] = {}
        self.alive: dict[int, dict[int, str]] = {}

    def start(self, generation: int, rank: int, node: str) -> None:
        previous = self.ran.setdefault((generation, rank), node)
        assert previous is node or previous == node, (
            f"rank {rank} of generation {generation} ran on {previous} and {node}"
        )
        assert rank not in self.alive.get(generation, {}), f"rank {rank} of generation {generation} was started twice"
        self.alive.setdefault(generation, {})[rank] = node

    def end(self, generation: int, rank: int) -> None:
        self.alive.get(generation, {}).pop(rank, None)

    def complete(self, generation: int) -> bool:
        return len(self.alive.get(generation, {})) == self.world_size


class SimNode:
    """One node: durable memory of what it started, an agent that may restart, ranks that may die."""

    def __init__(
        self, name: str, world: World, training: Training, say: Callable[[Event], None], beat: Callable[[str], None]
    ) -> None:
        self.name = name
        self.world = world
        self.training = training
        self._say = say
        self._beat = beat
        self.powered = True
        self.connected = True
        self.newest_fence = (0, 0)
        self.started_fence = (0, 0)
        self.order: NodeDesired | None = None
        self.ranks: dict[int, int] = {}
        self.steps_done = 0
        self.step = -1
        self.first_step_said = False
        self.unsent: list[Event] = []
        self.instance = 0
        self.boot()

    # --- the agent's life -------------------------------------------------------------------------

    def boot(self) -> None:
        self.powered = True
        self.instance += 1
        facts = NodeFacts(
            address="10.0.0.1",
            hostname=self.name,
            boot_id="b",
            store_ports=(1, 2, 3),
            cpus=1,
            memory_bytes=1,
            version="sim",
        )
        self.say(events.NodeRegistered, instance=f"{self.instance:04}", facts=facts)
        checks = (CheckResult(name="all", status="ok"),)
        self.say(events.NodeInspected, instance=f"{self.instance:04}", checks=checks, facts=facts)
        instance = self.instance
        self.world.after(0.1, lambda: self._heartbeat(instance))
        if self.order is not None and self.order.fence == self.started_fence:
            self._report_vanished(self.order)

    def _report_vanished(self, order: NodeDesired) -> None:
        if order.placement is None:
            return
        for local, rank in enumerate(order.placement.ranks):
            if rank not in self.ranks:
                self.say(
                    events.ProcessExited,
                    rank=rank,
                    local_rank=local,
                    exited_at=self.world.now(),
                    step=self.step,
                    detail="not found when the agent came back",
                )

    def _heartbeat(self, instance: int) -> None:
        if not self.powered or instance != self.instance:
            return
        if self.connected:
            self._beat(self.name)
            self._flush()
        self.world.after(1.0, lambda: self._heartbeat(instance))

    def say(self, kind: type[E], **fields: Any) -> None:
        order = self.order
        event = kind(
            id=uuid7(int(self.world.now().timestamp() * 1000), self.world.random.randbytes(10)),
            at=self.world.now(),
            source=f"agent/{self.name}",
            node=self.name,
            job=order.job if order else None,
            **{"generation": order.generation if order else None, **fields},
        )
        self.unsent.append(event)
        self._flush()

    def _flush(self) -> None:
        if self.connected:
            for event in self.unsent:
                self._say(event)
            self.unsent.clear()

    # --- orders -----------------------------------------------------------------------------------

    def obey(self, body: bytes) -> None:
        """The node's key has (or still has) this value."""
        order = desired.decode(body)
        if not self.powered or order.fence <= self.newest_fence:
            return
        self.newest_fence = order.fence
        stopped, previous = tuple(self.ranks), self.order
        for rank in stopped:
            self._end_rank(rank)
        self.order = order
        if previous is not None or order.placement is None:
            generation = previous.generation if previous else order.generation
            self.say(
                events.RanksStopped,
                generation=generation,
                ranks=stopped,
                killed=0,
                took_s=0.0,
                ordered_generation=order.generation,
            )
        self.steps_done, self.first_step_said = 0, False
        if order.placement is not None:
            self.started_fence = order.fence
            for rank in order.placement.ranks:
                self.ranks[rank] = order.generation
                self.training.start(order.generation, rank, self.name)
            processes = tuple(RankProcess(rank=rank, pid=1) for rank in self.ranks)
            self.say(events.RanksStarted, ranks=processes, took_s=0.01)
            self.step = self.training.saved_step
            fence = order.fence
            self.world.after(STEP_S, lambda: self._train(fence))

    def _end_rank(self, rank: int) -> None:
        self.training.end(self.ranks.pop(rank), rank)

    # --- training ---------------------------------------------------------------------------------

    def _train(self, fence: tuple[int, int]) -> None:
        if self.order is None or self.order.fence != fence or not self.ranks:
            return
        generation = self.order.generation
        if self.training.complete(generation):
            self.step += 1
            self.steps_done += 1
            self.training.saved_step = max(self.training.saved_step, self.step - 2)
            if self.powered:
                if not self.first_step_said:
                    self.first_step_said = True
                    self.say(events.FirstStep, step=self.step, completed_at=self.world.now())
                ranks = tuple(events.RankProgress(rank=rank, step=self.step, phase="train") for rank in self.ranks)
                self.say(events.Progress, ranks=ranks)
            if self.step >= LAST_STEP:
                # Ranks that end together: the others still count as there for those that end later.
                ranks_done = tuple(self.ranks)
                self.ranks.clear()
                self.say(events.RanksFinished, ranks=ranks_done)
                return
        self.world.after(STEP_S, lambda: self._train(fence))

    # --- faults -----------------------------------------------------------------------------------

    def kill_rank(self) -> None:
        if not self.ranks or not self.powered:
            return
        rank = self.world.random.choice(sorted(self.ranks))
        self._end_rank(rank)
        self.say(
            events.ProcessExited,
            rank=rank,
            local_rank=0,
            signal=9,
            exited_at=self.world.now(),
            step=self.step,
            steps_done=self.steps_done,
        )

    def restart_agent(self) -> None:
        """The agent dies and comes back; its ranks live on and are adopted, or not if they died meanwhile."""
        if self.powered:
            self.boot()

    def power_off(self) -> None:
        """The node is gone with everything on it; what it had not sent is kept by its disk."""
        self.powered = False
        for rank in list(self.ranks):
            self._end_rank(rank)
