"""Dual-phase replays on simulated machines: all groups compute the same, but for those with a machine that does not.

A group begins behind the newest step on the disk that it may restore, and takes as long as its steps do in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from holdfast.events import ReplayResult
from holdfast.events.parts.ranks import RankReplay
from holdfast.orders.node import NodeOrder
from holdfast_proving.scenario.last_words import LastWords
from holdfast_proving.truth.faults import Fault
from holdfast_proving.truth.ledger import Ledger
from holdfast_proving.world.agenda import Agenda

if TYPE_CHECKING:
    from holdfast_proving.world.machine import Machine
    from holdfast_proving.world.training import Training

Groups = tuple[tuple[str, ...], ...]


class Replays:
    def __init__(
        self,
        agenda: Agenda,
        ledger: Ledger,
        trainings: Mapping[str, Training],
        groups: Mapping[tuple[str, int], Groups],
        fails_at: Callable[[Training], tuple[int, LastWords] | None],
    ) -> None:
        """`groups`: of each generation that replays. `fails_at`: the step at which code or data end every rank."""
        self._agenda = agenda
        self._ledger = ledger
        self._trainings = trainings
        self._groups = groups
        self._fails_at = fails_at

    def start(self, machine: Machine, order: NodeOrder) -> None:
        """Train again on this machine, and report what its ranks computed."""
        training, placement = self._trainings[order.job or ""], order.placement
        assert placement is not None and placement.replay is not None
        limit = placement.restore_at_most
        first = max((it for it in training.checkpoints.on_disk if limit is None or it <= limit), default=0)
        last = first + placement.replay.steps(first)
        begins_s, step_s = training.plan.first_step_s, training.plan.step_s
        fails = self._fails_at(training)
        if fails is not None and first < fails[0] <= last:
            action = partial(self._fail, machine, order, fails[1])
            self._agenda.after(begins_s + (fails[0] - first) * step_s, action)
        else:
            action = partial(self._report, machine, order, training, first + 1, last)
            self._agenda.after(begins_s + (last - first) * step_s, action)

    def _fail(self, machine: Machine, order: NodeOrder, words: LastWords) -> None:
        if machine.runs(order.fence):
            machine.end_rank(words, Random(f"{machine.name}/{order.job}/{order.generation}"))

    def _report(self, machine: Machine, order: NodeOrder, training: Training, first: int, last: int) -> None:
        if not machine.runs(order.fence):
            return
        placement = order.placement
        assert placement is not None
        wrong = self._deviation(machine.name, order)
        bad = self._bad_data(training)
        replay = RankReplay(
            first=first, last=last, digest=wrong or f"{order.job}/{first}/{last}", bad_step=last if bad else None
        )
        for rank in placement.ranks:
            machine.tell(ReplayResult, job=order.job, generation=order.generation, rank=rank, replay=replay)
        machine.finish(order.fence)

    def _deviation(self, machine: str, order: NodeOrder) -> str:
        """Return what a group computes in which a machine computes wrongly this time; "" for the right answer."""
        groups = self._groups.get((order.job or "", order.generation), ())
        group = next((it for it in groups if machine in it), (machine,))
        return next(
            (
                f"{fault.seed}/{order.generation}"
                for member in group
                for fault in self._ledger.of_machine(member, self._agenda.seconds)
                if fault.culprit == member and _shows(fault, order)
            ),
            "",
        )

    def _bad_data(self, training: Training) -> bool:
        run = training.run
        return any(
            fault.kind.effect == "bad_numbers" and fault.place == training.plan.name
            for fault in self._ledger.open()
            if run is not None and run.has(fault.kind)
        )


def _shows(fault: Fault, order: NodeOrder) -> bool:
    """Return True if the machine computes wrongly in this phase: the same for all members of its group."""
    chance = fault.stream(f"replay/{order.job}/{order.generation}")
    return fault.kind.effect == "bad_numbers" and chance.random() < fault.kind.found_by_replay
