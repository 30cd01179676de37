"""The memory of machines that keeps a job's steps: own shards and copies of others', in coarse time.

What vaults keep of each node rank follows production's rules (`holdfast_vault.shelf`): the newest steps, the newest
that were sent, and those that orders pin. Between two events all of it is a function of time, so it is brought up to
date only when a run ends or an order arrives. A shard is one piece here: `tests/sim` loses single chunks.

A job that goes back leaves the later steps behind everywhere, so the number of a step in memory names one state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.orders.backup import BackupOrder
from holdfast_vault.shelf.wanted_steps import KEPT_MIN

if TYPE_CHECKING:
    from holdfast_proving.world.machine import Machine
    from holdfast_proving.world.training import Run, Training

SENT_KEPT = 2
"""Sent steps that stay: the keeper may still be receiving the newer one."""


class NodeMemory:
    """What one machine keeps of one job, by node rank, and the order that it follows."""

    __slots__ = ("kept", "life", "order", "pins_from")

    def __init__(self, life: int) -> None:
        self.life = life
        self.kept: dict[int, frozenset[int]] = {}
        self.order: BackupOrder | None = None
        self.pins_from = 0
        """Step from which on the order's coming step can be pinned: those before were made when it arrived."""


class Memory:
    """What all machines keep of one job."""

    def __init__(self, training: Training, machines: Mapping[str, Machine]) -> None:
        self._training = training
        self._machines = machines
        self._nodes: dict[str, NodeMemory] = {}
        self._keys: dict[str, BackupOrder] = {}
        """The newest order to each machine: one that was away reads it when it starts."""

    def clear(self) -> None:
        self._nodes.clear()
        self._keys.clear()

    def of(self, machine: str) -> NodeMemory:
        """Return what a machine keeps: nothing that is older than its last loss of power."""
        life, known = self._machines[machine].life, self._nodes.get(machine)
        if known is None or known.life != life:
            known = self._nodes[machine] = NodeMemory(life)
            known.order = self._keys.get(machine)
        return known

    def is_lost(self, machine: str) -> bool:
        """Return True if a machine has lost what it kept."""
        known = self._nodes.get(machine)
        return known is not None and known.life != self._machines[machine].life

    def obey(self, machine: str, order: BackupOrder) -> None:
        """Follow a newer order from now on, or once the machine is back."""
        last = self._keys.get(machine)
        if last is None or order.age > last.age:
            self._keys[machine] = order
        if not self._machines[machine].is_on:
            return
        here = self.of(machine)
        if here.order is not None and order.age <= here.order.age:
            return
        run = self._training.run
        if run is not None and machine in run.up:
            self.update(run, (machine,))
        here.order = order
        here.pins_from = self._training.step(run) + 1 if run is not None and run.began_s is not None else 0

    # --- keeping ----------------------------------------------------------------------------------

    def update(self, run: Run, machines: Iterable[str]) -> None:
        """Note what these machines have sealed and sent by now."""
        if run.began_s is None:
            return
        for machine in machines:
            if self._machines[machine].is_on:
                self._update(run, machine, run.up[machine])

    def _update(self, run: Run, machine: str, node_rank: int) -> None:
        here, newest = self.of(machine), self._training.step(run)
        order = here.order if here.order is not None and here.order.generation == run.generation else None
        made = {step for step in range(newest - KEPT_MIN + 1, newest + 1) if step >= run.from_step}
        pins = _named(order, self.oldest_of(run) if order is not None and order.certified_step is None else None)
        coming = order.coming_step if order is not None else None
        if coming is not None and max(run.from_step + 1, here.pins_from) <= coming <= newest:
            made.add(coming)
        sent = self.sent(run, order, newest) if order is not None else []
        before = here.kept.get(node_rank, frozenset())
        here.kept[node_rank] = _needed(before | made | {*sent}, sent, pins)
        if order is not None and order.keeper is not None and self._machines[order.keeper.node].is_on:
            copied = [step for step in (*sent, *pins & made) if self._has_arrived(run, step)]
            keeper = self.of(order.keeper.node)
            there = keeper.kept.get(node_rank, frozenset())
            keeper.kept[node_rank] = _needed(there | {*copied}, sent, pins)

    def oldest_of(self, run: Run) -> int:
        """Return the first step that this generation keeps."""
        return max(run.from_step, 1)

    def sent(self, run: Run, order: BackupOrder, newest: int) -> list[int]:
        """Return the newest steps that the keeper has by now."""
        if order.keeper is None:
            return []
        found = []
        for step in range(newest, run.from_step, -1):
            if order.is_sent(step, step - 1) and self._has_arrived(run, step):
                found.append(step)
                if len(found) == SENT_KEPT:
                    return found
        # A generation sends the step that it went on from first of all.
        return [*found, run.from_step] if run.from_step and self._has_arrived(run, run.from_step) else found

    def _has_arrived(self, run: Run, step: int) -> bool:
        until_s = self._training.agenda.seconds if run.halted_s is None else run.halted_s
        return self._training.when(run, step) + self._training.plan.copy_s <= until_s

    # --- coming back ------------------------------------------------------------------------------

    def found(self, run: Run) -> dict[str, frozenset[int]]:
        """Return the steps that each machine of a run finds: its own, and those that its order leads to."""
        return {
            machine: frozenset().union(*(self._kept(at, node_rank) for at in self._places(machine, run)))
            for machine, node_rank in run.up.items()
        }

    def holder(self, machine: str, run: Run, step: int) -> str | None:
        """Return the machine that has this step of a machine's node rank: itself, if it has it."""
        node_rank = run.up[machine]
        return next((at for at in self._places(machine, run) if step in self._kept(at, node_rank)), None)

    def whole(self, node_ranks: Iterable[int]) -> frozenset[int]:
        """Return the steps that exist anywhere of all node ranks, whether an order leads to them or not."""
        everywhere: defaultdict[int, set[int]] = defaultdict(set)
        for machine in list(self._nodes):
            if self._machines[machine].is_on:
                for node_rank, steps in self.of(machine).kept.items():
                    everywhere[node_rank] |= steps
        return frozenset.intersection(*(frozenset(everywhere[node_rank]) for node_rank in node_ranks))

    def go_on(self, run: Run, step: int) -> None:
        """Leave later steps behind, and keep the one that the generation goes on from."""
        for machine in list(self._nodes):
            here = self.of(machine)
            here.kept = {rank: frozenset(it for it in kept if it <= step) for rank, kept in here.kept.items()}
        for machine, node_rank in run.up.items():
            here = self.of(machine)
            here.kept[node_rank] = here.kept.get(node_rank, frozenset()) | {step}

    def _places(self, machine: str, run: Run) -> Iterator[str]:
        yield machine
        order = self.of(machine).order
        if order is not None and order.generation == run.generation:
            yield from (source.node for source in order.sources)

    def _kept(self, machine: str, node_rank: int) -> frozenset[int]:
        if not self._machines[machine].is_on:
            return frozenset()
        return self.of(machine).kept.get(node_rank, frozenset())


def _named(order: BackupOrder | None, oldest: int | None) -> frozenset[int]:
    """Return the steps that an order pins; until it names a certified one, the oldest of the generation stays."""
    if order is None:
        return frozenset()
    steps = (order.certified_step, order.coming_step, order.complete_step, order.frozen_step, oldest)
    return frozenset(step for step in steps if step is not None)


def _needed(steps: Iterable[int], sent: Iterable[int], pins: frozenset[int]) -> frozenset[int]:
    there = sorted(steps, reverse=True)
    return frozenset(there[:KEPT_MIN]) | {step for step in there if step in pins or step in sent}
