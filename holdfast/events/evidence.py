"""Facts that agents saw."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Evidence
from holdfast.events.checkpoint_evidence import (
    CheckpointRestored,
    CopiesRefused,
    KeepingInterrupted,
    KeepingSpaced,
    ShardDamaged,
    StepNotPersisted,
    StepsKept,
)
from holdfast.events.parts.devices import NodeActivity
from holdfast.events.parts.job import AgentPlace, CheckResult, NodeFacts, Purpose
from holdfast.events.parts.ranks import FoldedResult, RankException, RankProgress, RankReplay, require_ranks
from holdfast.events.parts.scalars import Code, Count, Id, Moment, Name, Step
from holdfast.events.parts.step_source import StepSource
from holdfast.events.parts.traces import NodeLinks, ProcessStacks, RankTrace
from holdfast.events.slow_evidence import CollectivesProfiled, SlownessTested


class NodeRegistered(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent has started and offers its node."""

    instance: Id
    """UUIDv7, new with every start of the agent; later ones sort later."""
    facts: NodeFacts
    epoch: Count = 0
    """Epoch of the newest order that the agent remembers; the next hand-over must be above it."""


class NodeInspected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a node's self-check: can it take ranks? Published by its agent after the registration."""

    instance: Id
    checks: tuple[CheckResult, ...]
    facts: NodeFacts | None = None
    """Facts of the node, as in its registration, in case this event overtakes that."""

    @property
    def passed(self) -> bool:
        """No check failed."""
        return all(check.status != "failed" for check in self.checks)


class NodeDeparted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent is shut down on purpose; its ranks are stopped."""

    instance: Id


class NodeRefused(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent gave way to another one that holds the node of this name. It runs no ranks."""

    instance: Id
    place: AgentPlace
    holder: AgentPlace
    holder_instance: Id


class SpoolSetAside(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent found its spool damaged and began an empty one: events that were not published are lost."""

    path: str
    """Path of the damaged file, which is kept."""
    detail: str


class ProcessExited(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A rank ended with an error, or its process is gone although it should run.

    Published by the node's agent. In the second case `exit_code` and `signal` are None.
    """

    rank: Count
    local_rank: Count
    pid: Count | None = None
    exit_code: Code | None = None
    signal: Code | None = None
    exited_at: Moment
    step: Step = -1
    """Last step that the rank completed, -1: none ever."""
    steps_done: Count = 0
    """Steps that it completed in this generation."""
    exception: RankException | None = None
    log_tail: str = ""
    """End of its output, at most 16,384 characters."""
    detail: str = ""
    purpose: Purpose = "train"
    agent_was_away: bool = False
    """True if the node's agent did not run when the rank ended, as after a loss of power, or if an order ended it that
    the controller does not know any more, as after a restore of its database: outages, and no failures of the node.
    """
    finished_ranks: tuple[Count, ...] = ()
    """Ranks of the node that had ended with exit code 0 before."""


class LogSignature(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A running rank printed lines that show trouble: a hint, no proof. Published by the node's agent."""

    rank: Count
    signature: str
    """Name of the rule."""
    stream: Literal["out", "err"]
    symptom: str = ""
    """A name of `holdfast.symptoms`; "": none in particular."""
    lines: tuple[str, ...] = ()
    """The first of the lines."""
    count: Count = 1
    """Lines since the last such event of this rank and signature."""
    step: Step = -1


class FirstStep(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node have completed their first step of this generation; published by its agent."""

    step: Step
    completed_at: Moment
    is_numbered: bool = True
    """The step's number comes from the script or continues a restored checkpoint. False: steps count from 0 in every
    generation, so that no number shows how far the job is."""
    step_source: StepSource = ""
    step_source_name: str = ""
    """Name of the framework that counts the steps, or of what the script restored."""
    is_start_unknown: bool = False
    """True if nothing shows at which step of the job the ranks go on."""

    @property
    def is_start_known(self) -> bool:
        """True if its numbers show at which step of the job the generation went on. Agents of earlier releases counted
        from 0 what was not numbered, whatever the script had restored.
        """
        return not self.is_start_unknown and (self.is_numbered or self.step_source != "")


class StepsNumbered(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The output of a rank shows which number the script gives to steps counted from 0; by its node's agent."""

    step: Step
    """The script's number of the generation's first step."""
    step_source_name: str = ""


class Progress(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of the ranks of a node; published by its agent about once a second while they run."""

    ranks: tuple[RankProgress, ...]
    world_size: Count = 0
    """Ranks of the job; 0: not known."""
    nproc_per_node: Count = 0
    """Ranks on each node; 0: not known."""
    mesh: str | None = None

    def __post_init__(self) -> None:
        require_ranks(self.world_size, self.ranks)

    @property
    def step(self) -> int:
        """The step that all ranks of the node have completed that make steps."""
        return min((rank.step for rank in self.ranks if rank.step >= 0), default=-1)


class Inspection(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A check of a node beside training found something, or finds it no longer; published by its agent.

    An alert is cleared by the same check, device and kind.
    """

    check: str
    state: Literal["alert", "cleared", "broken"]
    """`alert` each time the check raises it; `cleared` when it is over; `broken` when the check itself fails, which
    shows nothing about the node's health."""
    confidence: Literal["evict", "tolerate", "hint"]
    """Action that an alert asks for. `evict`: the node is at fault without doubt; `tolerate`: often passes by itself,
    so wait for a second one; `hint`: proves nothing."""
    symptom: str = ""
    """A name of `holdfast.symptoms`; "": none."""
    scope: Literal["node", "host"] = "node"
    """A `host` alert concerns every node of the machine `boot_id`."""
    boot_id: str = ""
    device: str = ""
    """Device that the check concerns, for example `eth0`, `/data` or a PCI address."""
    kind: str = ""
    """Aspect of the device. With `sight`, `broken` means that the check or device cannot be read, `cleared` that it can
    again."""
    is_momentary: bool = False
    """True if the alert is over already, like a line in the kernel's log, and will not be cleared."""
    detail: str = ""
    lines: tuple[str, ...] = ()
    """The text that was read, word for word."""
    shared: str = ""
    """Thing that the alert is about, if nodes have it in common: `address 10.0.0.1`, `file system nfs1:/data`. The same
    text from two nodes or more is that thing's fault. "": something of the node's own, whatever `device` is called."""


class DiagnosticResult(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one stop-time test on one node, or between it and its `peers`; published by its agent.

    A failure is published at once. What passed is `folded` into the result that ends the node's run.
    """

    run: str
    """Id of the run of checks, equal for all its results."""
    test: str
    status: Literal["passed", "failed", "broken", "skipped"]
    """`failed` counts against the node, or against it or one of its `peers`; `broken` and `skipped` show nothing about
    health."""
    symptom: str = ""
    peers: tuple[Name, ...] = ()
    round: Count = 0
    """Round of the test within its run."""
    device: str = ""
    value: float | None = None
    """Measured value, in `unit`."""
    needed: float | None = None
    """Lowest value that passes."""
    unit: str = ""
    digest: str = ""
    """An answer that must be equal on all nodes with the same `hardware` and `program`."""
    hardware: str = ""
    program: str = ""
    """Version of the test."""
    boot_id: str = ""
    """Machine of the node."""
    took_s: float = 0.0
    detail: str = ""
    done: Count = 0
    """Number of finished tests of this node."""
    total: Count = 0
    """Number of all tests of this node."""
    results: Count = 0
    """In the result that ends the run: number of results that this node published before it, which may arrive later."""
    folded: tuple[FoldedResult, ...] = ()
    """In the result that ends the run: tests that passed or were skipped, and were not published one by one."""


class ReplayResult(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one rank of a group that repeated training to find a fault; published by its node's agent."""

    rank: Count
    """Rank within its group."""
    replay: RankReplay
    took_s: float = 0.0


class StackDump(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Stacks of the processes of a node's ranks, one of `parts` events that answer the trace order `trace`.

    Published by its agent. A process that could not be read is included, with the reason.
    """

    trace: Id
    processes: tuple[ProcessStacks, ...]
    part: Count = 1
    parts: Count = 1
    took_s: float = 0.0
    """Duration of the whole round on this node."""
    links: NodeLinks | None = None
    """Network connections of the node, in the first part."""
    activity: NodeActivity | None = None
    """Activity of the node's devices and RDMA ports meanwhile, in the first part."""


class CollectiveTrace(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Recent collectives of a node's ranks, one of `parts` events that answer the trace order `trace`.

    Published by its agent. Times are nanoseconds since `origin` (`holdfast.engines.hang.event_times`).
    """

    trace: Id
    ranks: tuple[RankTrace, ...]
    origin: Moment
    part: Count = 1
    parts: Count = 1
    took_s: float = 0.0


class CodeNotInPlace(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A node could not get a version of the job's code, so its ranks were not started; published by its agent."""

    version: str
    detail: str


class OrderRefused(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent read an order older than the newest that it obeyed. If the older is the true one, the controller forgot
    the newest because its database was restored. An agent that remembers no order names the newest as 0/0.
    """

    epoch: Count
    newest_epoch: Count
    newest_generation: Count
    newest_job: Name | None = None
    """The job of the newest order."""
    is_obeyed: bool = False
    """True if the agent obeyed the older order all the same, since that names the newest as one never given."""


class FaultInjected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A fault was injected on purpose (`holdfast inject`), or undone; published just before by the command line.
    Without a `node` it concerns a whole machine.
    """

    injection: Id
    """Id of the injection, equal when it is injected and undone."""
    fault: str
    by: str
    state: Literal["injected", "undone"] = "injected"
    symptom: str = ""
    """A name of `holdfast.symptoms`."""
    rank: Count | None = None
    options: tuple[str, ...] = ()
    """Options that were given, as name=value."""


class MessageRejected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A service or agent could not read or handle a message; the dead-letter stream has all of it."""

    subject: str
    consumer: str
    error: str
    body_bytes: Count
    deliveries: Count


class BusWentBack(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """The bus lost messages that it had stored; their publisher publishes them again."""

    stream: str
    sequence: Count
    """Position of the publisher's first lost message."""
    newest_job: Name | None = None
    """Job of the newest order that the publishing node has obeyed, and the order's generation."""
    newest_generation: Count = 0


AnyEvidence = (
    NodeRegistered
    | NodeInspected
    | NodeDeparted
    | NodeRefused
    | SpoolSetAside
    | ProcessExited
    | LogSignature
    | FirstStep
    | StepsNumbered
    | Progress
    | StepsKept
    | KeepingSpaced
    | CheckpointRestored
    | Inspection
    | DiagnosticResult
    | ReplayResult
    | StackDump
    | CollectiveTrace
    | CollectivesProfiled
    | SlownessTested
    | CodeNotInPlace
    | ShardDamaged
    | StepNotPersisted
    | CopiesRefused
    | KeepingInterrupted
    | OrderRefused
    | FaultInjected
    | MessageRejected
    | BusWentBack
)
