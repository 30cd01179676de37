"""The record of a node over incidents and jobs: marks of its failures, and of what was found out about it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

MARKS_MAX = 32
"""Marks that a record keeps, the newest; older ones remain as counts."""
TEXT_MAX = 300


class MarkKind(StrEnum):
    """The kind of a mark: what happened on the node, or what was found out about it."""

    CRASH = "crash"
    """A rank ended there first, and nothing explains it."""
    KILLED = "killed"
    """A rank was killed, or vanished: a broken device does neither."""
    HARDWARE = "hardware"
    """A rank's own output names broken hardware. A script can print anything."""
    WITNESSED = "witnessed"
    """A rank's output names broken hardware, and evidence that no script can forge confirms it."""
    ALERT = "alert"
    """An inspection was sure about it."""
    HANG = "hang"
    """A hang that this node alone caused."""
    IN_GROUP = "in_group"
    """One of several that may have held up the job. By itself that is never held against it."""
    SLOW = "slow"
    """Tests found that it alone slowed the job down."""
    LOST = "lost"
    """The node fell silent or was shut down. That is never held against it."""
    EXPLAINED = "explained"
    """A failure with a known cause that is not the machine's; also never held against it."""
    CHECKS_PASSED = "checks_passed"
    CHECKS_FAILED = "checks_failed"
    EVICTED = "evicted"
    CONFIRMED = "confirmed"
    """Tests after its eviction found it at fault."""
    CLEARED = "cleared"
    """An eviction of the node proved wrong."""
    RELEASED = "released"
    """A person took it off the blocklist."""


COMPARED = frozenset({MarkKind.CRASH, MarkKind.KILLED, MarkKind.HANG, MarkKind.SLOW})
"""Failures that count by comparison with the job's other nodes: the job may bring them about anywhere."""

SORTS = (
    frozenset({MarkKind.KILLED}),
    frozenset({MarkKind.SLOW}),
    frozenset({MarkKind.CRASH, MarkKind.HANG, MarkKind.HARDWARE, MarkKind.WITNESSED, MarkKind.ALERT}),
)
"""Failures that one trait of a job may bring about on several of its nodes. A kill here is no reason for a crash there.
"""

BY_RANKS = COMPARED | {MarkKind.HARDWARE}
"""Failures that rest on what ranks did or printed, as a script may do on any machine."""

AGAINST = BY_RANKS | {MarkKind.WITNESSED, MarkKind.ALERT}
"""Failures that count against the node."""

SURE = frozenset({MarkKind.WITNESSED, MarkKind.ALERT, MarkKind.CHECKS_FAILED, MarkKind.CONFIRMED})
"""Marks that point to the machine by themselves: no script can forge them."""

JUDGED = frozenset({MarkKind.EVICTED, MarkKind.CONFIRMED, MarkKind.CLEARED, MarkKind.RELEASED})
"""Evictions, and what became of them."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was noted about a node."""

    at: datetime
    kind: MarkKind
    job: str = ""
    generation: int = 0
    incident: str = ""
    nodes: int = 1
    """Number of the job's nodes."""
    symptom: str = ""
    rank: int | None = None
    device: str = ""
    peer: str = ""
    """The other end, where a link is suspected."""
    rack: str = ""
    rack_nodes: int = 0
    """Number of the job's nodes in that rack."""
    epoch: int = 0
    """Epoch at which the job held the node that it evicted."""
    is_accusation: bool = False
    """True for an eviction that rests on nothing but what ranks did or printed."""
    author: str = ""
    """The user who submitted the job that accuses."""
    is_tested: bool = False
    """True for an eviction that tests beside training follow."""
    text: str = ""
    event: str = ""
    """Id of the event that reports it."""
    struck: str = ""
    """Why it no longer counts; "" if it does."""

    @property
    def counts(self) -> bool:
        return self.kind in AGAINST and not self.struck


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of one node."""

    node: str
    marks: tuple[Mark, ...] = ()
    """The newest, oldest first."""
    counts: dict[str, int] = {}
    """Number of all marks since the record began, by kind."""
    log_odds: float | None = None
    """Logarithm of the odds of a lasting fault when the last mark was made; None before that."""

    @property
    def as_of(self) -> datetime | None:
        return self.marks[-1].at if self.marks else None

    @property
    def accusation(self) -> Mark | None:
        """The last eviction, if it rests on nothing but what ranks did and nothing has proved it right or wrong."""
        last = next((mark for mark in reversed(self.marks) if mark.kind in JUDGED), None)
        return last if last is not None and last.is_accusation else None

    def mark_of(self, job: str, generation: int) -> Mark | None:
        """Return the failure that was noted for this generation of a job."""
        failures = (it for it in reversed(self.marks) if it.kind in AGAINST or it.kind is MarkKind.EXPLAINED)
        return next((it for it in failures if (it.job, it.generation) == (job, generation)), None)

    def with_mark(self, mark: Mark) -> NodeRecord:
        counts = self.counts | {str(mark.kind): self.counts.get(str(mark.kind), 0) + 1}
        ordered = sorted((*self.marks, mark), key=lambda it: it.at)
        return msgspec.structs.replace(self, marks=tuple(ordered[-MARKS_MAX:]), counts=counts)

    def replacing(self, old: Mark, new: Mark) -> NodeRecord:
        return msgspec.structs.replace(self, marks=tuple(new if it is old else it for it in self.marks))
