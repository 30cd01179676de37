"""Facts that `holdfast doctor` has read of a cluster. A part that could not be read is None, with a reason. Pure.

All ages are in seconds by one clock, that of the database, so that clocks that differ do not distort them.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.cli.checkpoints.odds import Loss, Plan
from holdfast.subjects import CONSUMERS

SERVICES = CONSUMERS


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a service that the bus does not have yet."""

    service: str
    waiting: int
    oldest_s: float


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest message that a service published to a stream, which must have it at this position."""

    service: str
    id: str
    stream: str
    sequence: int


class WentBack(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that lost messages within a day; its publishers published theirs again."""

    stream: str
    publishers: int
    ago_s: float


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the inventory; `unchanged_s` is the age of its state."""

    node: str
    state: str
    reason: str
    unchanged_s: float


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has not ended."""

    job: str
    phase: str
    unchanged_s: float
    """Time since the controller last changed anything about it."""
    wanted: int | None = None
    """Nodes of its open claim; None: it has none."""
    free: int = 0
    """Nodes in standby."""
    step_seen_s: float | None = None
    """Age of the newest recorded step of this generation; None before the first, or without reports of steps."""
    step_s: float | None = None
    root_because: str = ""
    """Reason why its ranks run as root, though it should have its own user."""
    users: tuple[str, ...] = ()
    """Users of its ranks; "": that of an agent. More than one: its nodes have different settings."""
    waits_because: str = ""
    """Reason for a pause in its training."""
    slow_because: str = ""
    """Reason why it is not restarted for a machine that makes it slow; "": nothing makes it slow, or it is."""
    unreplaced: tuple[str, ...] = ()
    """Its nodes that are more likely broken than not and stay, as no other node is free: what was found last."""
    shared_faults: tuple[str, ...] = ()
    """Faults of what its nodes share, that last."""


class JobOdds(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of machines that leave every shard of a job in memory, under its backup plan and under others."""

    job: str
    reason: str
    """Why the plan in use was chosen."""
    is_kept: bool = True
    """True if the memory of any node has something of the job."""
    kept_every: int = 1
    """Distance of the steps that ranks keep."""
    plans: tuple[Plan, ...] = ()

    @property
    def one_machine(self) -> Loss:
        """The loss of one machine under the plan in use."""
        losses = (loss for plan in self.plans if plan.in_use for loss in plan.odds if loss.loss == "1 machine")
        return next(losses, Loss(loss="1 machine", losses=0, survived=0))


class ForeignEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Recent events of a node about a job that it does not belong to."""

    node: str
    job: str
    count: int
    type: str
    """One of the types of these events."""


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the database."""

    ahead_s: float
    """Seconds by which the database's clock is ahead of this machine's."""
    outboxes: tuple[Outbox, ...] = ()
    published: tuple[PublishedMessage, ...] = ()
    went_back: tuple[WentBack, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    odds: tuple[JobOdds, ...] = ()
    checkpoint_paths: tuple[str, ...] = ()
    """The newest checkpoint on the disk of each job."""
    foreign: tuple[ForeignEvents, ...] = ()
    open_databases: tuple[str, ...] = ()
    """Other databases of the server to which any of its roles may connect, quoted as in SQL."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer of a service on a stream."""

    stream: str
    service: str
    waiting: int
    """Messages that it has not acknowledged."""
    idle_s: float
    """Time since its last acknowledgement."""
    acknowledged: int
    """Sequence up to which it has acknowledged everything."""
    has_moved: bool = True
    """True if it acknowledged anything between two looks."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    last_sequence: int


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that could not be handled; the newest one."""

    count: int
    newest_s: float
    consumer: str
    subject: str
    error: str


class BusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the bus."""

    ahead_s: float
    """Seconds by which the bus server's clock is ahead of this machine's."""
    streams: tuple[Stream, ...] = ()
    missing_streams: tuple[str, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    dead_letters: DeadLetters | None = None
    flood: DeadLetters | None = None
    """The newest report of a node that published more than its share."""
    answering: frozenset[str] = frozenset()
    """Services and agents (`agent-NODE`) that answered a ping."""
    lost_messages: tuple[PublishedMessage, ...] = ()
    """Messages of `DatabaseFacts.published` that their streams do not have."""
    nodes_ahead_s: dict[str, float] = {}
    """Clocks of nodes, compared with that of this machine, by their heartbeats."""
    write_error: str = ""
    """Report of the server's own health check."""


class SupervisedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that `holdfast up` supervises."""

    name: str
    state: str
    restarts: int
    last_exit: str | None
    ready_s: float | None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A file system; `free_bytes` is None if it did not answer."""

    path: str
    free_bytes: int | None
    total_bytes: int = 0


class CertificateFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of certificates that this command's settings name."""

    path: str
    ends_at: datetime


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts; a `..._problem` is why a part could not be read."""

    at: datetime
    database: DatabaseFacts | None = None
    database_problem: str = ""
    bus: BusFacts | None = None
    bus_problem: str = ""
    supervisor_problem: str = ""
    processes: tuple[SupervisedProcess, ...] = ()
    disks: tuple[Disk, ...] = ()
    in_memory: tuple[str, ...] = ()
    """Directories of the cluster that end with the machine, as on a tmpfs."""
    certificates: tuple[CertificateFile, ...] = ()
