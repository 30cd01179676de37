"""Warm-ups on simulated machines: each test fails where a fault is that it finds, and on the neighbours' side too."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from holdfast.engines.checks.suites import END
from holdfast.engines.checks.warm_up import DEVICES, PATHS, SOCKETS, WarmUpResult
from holdfast.orders.node import NodeOrder
from holdfast_proving.truth.ledger import Ledger
from holdfast_proving.world.agenda import Agenda

TAKES_S = (0.3, 1.5)
HANGS_S = 3.0
"""A path that does not answer is given up after this time."""
DATA = "/data"
SYMPTOMS = {PATHS: "filesystem_mount", DEVICES: "silent_data_corruption", SOCKETS: "network_error"}


class WarmUps:
    def __init__(self, agenda: Agenda, ledger: Ledger, members: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """`members`: the nodes of each generation."""
        self._agenda = agenda
        self._ledger = ledger
        self._members = members

    def takes_s(self, machine: str, order: NodeOrder) -> float:
        # A stream of its own, as that of stop-time tests.
        takes_s = Random(f"warm-up/{machine}/{order.job}/{order.generation}").uniform(*TAKES_S)
        return takes_s + HANGS_S if PATHS in self._found(machine) else takes_s

    def results(self, machine: str, order: NodeOrder) -> tuple[WarmUpResult, ...]:
        """Return what the warm-up of a machine reports; nothing if it never answers."""
        found = self._found(machine)
        if "silent" in found:
            return ()
        assert order.placement is not None and order.placement.warm_up is not None
        results = [_result(PATHS, fails=PATHS in found, device=DATA, digest="" if PATHS in found else "nfs")]
        if order.placement.warm_up.tests_devices:
            results.append(_result(DEVICES, fails=DEVICES in found, device="GPU 0"))
        members = self._members.get((order.job or "", order.generation), ())
        if machine in members and len(members) > 1:
            place = members.index(machine)
            for peer in {members[place - 1], members[(place + 1) % len(members)]} - {machine}:
                fails = SOCKETS in found or SOCKETS in self._found(peer)
                results.append(_result(SOCKETS, fails=fails, peers=(peer,)))
        return (*results, WarmUpResult(test=END, status="passed", results=len(results)))

    def _found(self, machine: str) -> set[str]:
        return {fault.kind.warm_up for fault in self._ledger.of_machine(machine, self._agenda.seconds)}


def _result(test: str, *, fails: bool, peers: tuple[str, ...] = (), device: str = "", digest: str = "") -> WarmUpResult:
    if fails:
        symptom, detail = SYMPTOMS[test], f"{device or peers[0]} fails"
        return WarmUpResult(test=test, status="failed", symptom=symptom, peers=peers, device=device, detail=detail)
    return WarmUpResult(test=test, status="passed", peers=peers, device=device, digest=digest)
