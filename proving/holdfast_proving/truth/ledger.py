"""The ledger of the truth: every fault with its beginning and end, and each time that one showed itself.

Only the world writes it. Decisions never see it, except those of the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast_proving.scenario.scenario import ABSENCES
from holdfast_proving.truth.faults import Fault

SHARED = frozenset({"rack", "switch", "power", "cluster"})
"""Places of several machines, none of which is at fault alone."""


class Record(msgspec.Struct):
    """One fault as it was."""

    fault: Fault
    began_s: float
    ended_s: float | None = None
    end: str = ""
    """`passed`, `repaired` or `mended`."""

    def holds(self, at_s: float, grace_s: float = 0.0) -> bool:
        """Return True if the fault was there at this time, or has ended within the grace before it."""
        return self.began_s <= at_s and (self.ended_s is None or at_s <= self.ended_s + grace_s)


class Showing(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a fault had its effect on a job."""

    at_s: float
    fault: int
    job: str
    generation: int
    machine: str
    """Machine on which it was seen."""
    step: int = 0
    """The first step that it spoils, or whose numbers look wrong."""


class Ledger:
    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.showings: list[Showing] = []
        self._open: dict[int, Record] = {}
        self._of_machine: dict[str, list[Record]] = {}

    def begin(self, fault: Fault, at_s: float) -> None:
        record = Record(fault=fault, began_s=at_s)
        self.records[fault.number] = self._open[fault.number] = record
        for machine in fault.machines:
            self._of_machine.setdefault(machine, []).append(record)

    def end(self, fault: Fault, at_s: float, end: str) -> None:
        record = self._open.pop(fault.number)
        record.ended_s, record.end = at_s, end

    def show(self, showing: Showing) -> None:
        self.showings.append(showing)

    def open(self) -> list[Fault]:
        return [record.fault for record in self._open.values()]

    def of_machine(self, machine: str, at_s: float, grace_s: float = 0.0) -> Iterator[Fault]:
        """Return the faults that this machine had, alone or with others."""
        return (it.fault for it in self._of_machine.get(machine, ()) if it.holds(at_s, grace_s))

    def is_at_fault(self, machine: str, at_s: float, grace_s: float = 0.0) -> bool:
        """Return True if the machine itself had a fault that lasts: without it the job is better off."""
        return any(fault.culprit == machine for fault in self.of_machine(machine, at_s, grace_s))

    def was_away(self, machine: str, at_s: float, grace_s: float = 0.0) -> bool:
        """Return True if the machine was gone, whatever the reason."""
        return any(fault.kind.effect in ABSENCES for fault in self.of_machine(machine, at_s, grace_s))

    def shared(self, machine: str, at_s: float, grace_s: float = 0.0) -> list[Fault]:
        """Return the faults that it had together with others, which are no fault of its own."""
        return [fault for fault in self.of_machine(machine, at_s, grace_s) if fault.kind.place in SHARED]
