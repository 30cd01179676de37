"""Stop-time checks on a simulated machine: they find what is there, as often as the scenario sets."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from holdfast.orders.node import NodeOrder
from holdfast_proving.truth.ledger import Ledger
from holdfast_proving.world.agenda import Agenda

if TYPE_CHECKING:
    from holdfast_proving.world.machine import Machine

TAKE_S = (20.0, 60.0)
RATE = 30.0
"""GFLOP/s of a healthy machine."""


class NodeTests:
    def __init__(self, agenda: Agenda, ledger: Ledger, members: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """`members`: the nodes of each generation that runs tests."""
        self._agenda = agenda
        self._ledger = ledger
        self._members = members

    def start(self, machine: Machine, order: NodeOrder) -> None:
        """Report all results after a while, and end the ranks with 0."""
        # A stream of its own: what else happens meanwhile does not change how long a test takes.
        take_s = Random(f"{machine.name}/{order.job}/{order.generation}").uniform(*TAKE_S)
        self._agenda.after(take_s, lambda: self._report(machine, order))

    def _report(self, machine: Machine, order: NodeOrder) -> None:
        if not machine.runs(order.fence):
            return
        slowdown = 1.0
        found = ""
        for fault in self._ledger.of_machine(machine.name, self._agenda.seconds):
            if fault.culprit != machine.name:
                continue
            if fault.kind.effect == "slow":
                slowdown = max(slowdown, fault.kind.slowdown)
            elif fault.stream(f"checks/{order.job}/{order.generation}").random() < fault.kind.found_by_checks:
                found = fault.kind.name
        neighbours = self._neighbours(machine.name, order)
        if found:
            machine.result(order, "gemm", "failed", symptom="cuda_error", detail=f"differs ({found})")
        else:
            machine.result(order, "gemm", "passed", symptom="")
        machine.result(order, "speed", "passed", value=RATE / slowdown, unit="GFLOP/s", hardware="simulated")
        for peer in neighbours:
            machine.result(order, "all_gather", "passed", peers=(peer,), value=1.0)
        machine.result(order, "end", "passed", results=2 + len(neighbours))
        machine.finish(order.fence)

    def _neighbours(self, machine: str, order: NodeOrder) -> tuple[str, ...]:
        """Return the machines that it meets: the next two of the run."""
        members = self._members.get((order.job or "", order.generation), ())
        if machine not in members:
            return ()
        place = members.index(machine)
        return tuple({members[(place + by) % len(members)] for by in (1, 2)} - {machine})
