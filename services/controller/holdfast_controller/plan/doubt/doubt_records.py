"""Records of what a job is not sure of: doubts, requested replacements, guesses, faults that nodes share. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast_controller.plan.incident.incident import Alert, Failure

SUSPECTS_TESTED_MIN = 3
"""Minimum number of suspects that can be tested without a witness (`checks/suspect_test.py`)."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A node that an alert is sure about. Before it is evicted the alert is compared with those of other nodes."""

    failure: Failure
    key: str
    """Key of the alert; see `Alert.key`."""
    since: datetime
    due_at: datetime
    is_withheld: bool = False
    """True once it is known that nothing can replace the node."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that leave the job as soon as others are granted; until then the job trains on, or hangs."""

    failure: Failure
    claim: str
    """Id of the request for the other nodes."""
    incident: str
    """Id of the incident that it opens, if none is open then; "": a new one."""
    until: datetime | None = None
    """When a job that hangs stops waiting for an answer; None: it trains."""
    nodes: tuple[str, ...] = ()
    """The nodes that leave, if the failure is held against none of them."""

    @property
    def leaving(self) -> tuple[str, ...]:
        return self.nodes or leaving(self.failure)


class SharedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of something that nodes share; it has a separate incident."""

    incident: str
    thing: str
    symptom: str
    since: datetime
    nodes: tuple[str, ...]
    """Nodes that reported it, the earliest first."""
    text: str
    event: str = ""
    """Id of the `shared_fault_found` that opened the incident."""

    @property
    def summary(self) -> str:
        return f"{self.thing}, seen by {', '.join(self.nodes)}: {self.text}"


class Convict(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was evicted for its alerts lately: others may turn out to have the same ones."""

    node: str
    epoch: int
    at: datetime
    alerts: tuple[Alert, ...]


class GroupGuess(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was evicted because one of its nodes blocked the others."""

    incident: str
    generation: int
    at: datetime
    nodes: dict[str, int]
    """The epoch at which each of them was held."""
    places: frozenset[int]
    """Their node ranks."""
    is_refuted: bool = False


class LostNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that fell silent, kept to compare it with other losses of the time."""

    node: str
    rack: str
    at: datetime


def leaving(failure: Failure) -> tuple[str, ...]:
    """Return the nodes that the failure is held against."""
    return failure.suspects or failure.group or ((failure.node,) if failure.node else ())


class PastBadNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Bad numbers of an incident that is over, and for which no machine and no code was found at fault."""

    at: datetime
    step: int
    node: str | None = None
    """The node whose ranks alone had them."""
    was_replayed: bool = False
    """True if a replay compared the machines in vain."""
