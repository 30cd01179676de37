"""Facts that agents saw."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Evidence
from holdfast.events.parts.job import CheckResult, Endpoint, NodeFacts, Purpose
from holdfast.events.parts.ranks import RankException, RankProgress, RankReplay
from holdfast.events.parts.samples import RankProfile, SlowStage
from holdfast.events.parts.scalars import Code, Count, Id, Moment, Name, Step
from holdfast.events.parts.traces import NodeLinks, ProcessStacks, RankTrace


class NodeRegistered(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent has started and offers its node. `instance` is a UUIDv7 new with every start: later ones sort later.

    `epoch` is that of the newest order it remembers: the next hand-over must be above it.
    """

    instance: Id
    facts: NodeFacts
    epoch: Count = 0


class NodeInspected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A node's self-check is done: whether it can take ranks, and what was looked at.

    It carries the node's facts as well, so that it says enough if it overtakes the registration.
    """

    instance: Id
    checks: tuple[CheckResult, ...]
    facts: NodeFacts | None = None

    @property
    def passed(self) -> bool:
        """No check failed."""
        return all(check.status != "failed" for check in self.checks)


class NodeDeparted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent is shut down on purpose; its ranks are stopped."""

    instance: Id


class ProcessExited(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A rank ended with an error, or is gone although it should run (`exit_code` and `signal` unknown).

    `step` is the last step it completed (-1: none ever); `steps_done` how many in this generation.
    """

    rank: Count
    local_rank: Count
    pid: Count | None = None
    exit_code: Code | None = None
    signal: Code | None = None
    exited_at: Moment
    step: Step = -1
    steps_done: Count = 0
    exception: RankException | None = None
    log_tail: str = ""
    detail: str = ""
    purpose: Purpose = "train"


class LogSignature(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A rank that still runs printed lines that show trouble: a hint, no proof.

    `signature` names the rule, `symptom` what it is a sign of (`holdfast.symptoms`; "" for nothing in
    particular).
    `lines` are the first of them, `count` is how many there were since the last such event of this rank and signature.
    """

    rank: Count
    signature: str
    stream: Literal["out", "err"]
    symptom: str = ""
    lines: tuple[str, ...] = ()
    count: Count = 1
    step: Step = -1


class FirstStep(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node have completed their first step of this generation.

    `is_numbered`: its number is the script's own, or counted on from a restored checkpoint. Otherwise steps are counted
    from 0 in every generation, and no number tells how far the job is.
    """

    step: Step
    completed_at: Moment
    is_numbered: bool = True


class Progress(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Where the ranks of a node stand, sent about once a second while they run. The job has `world_size` ranks (0: not
    told), `nproc_per_node` on each node, and this `mesh`.
    """

    ranks: tuple[RankProgress, ...]
    world_size: Count = 0
    nproc_per_node: Count = 0
    mesh: str | None = None

    @property
    def step(self) -> int:
        """The step that all ranks of the node have completed."""
        return min((rank.step for rank in self.ranks), default=-1)


class Inspection(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A check of a node that goes on beside training has found something, or finds it no more.

    `state`: `alert` each time that the check raises it, `cleared` when it is over, `broken` when the check itself
    cannot look, which says nothing of the node's health, good or bad. `confidence` is what an alert asks for: `evict`
    names this node without doubt, `tolerate` passes by itself often enough to wait for a second one, `hint`
    proves
    nothing. `symptom` is one of `holdfast.symptoms`. `device` is what it is about (`eth0`, `/data`, a PCI
    address),
    `kind` what of it: an alert is cleared by the same check, device and kind. With kind `sight`, `broken` says that the
    check, or this device, cannot be looked at, and `cleared` that it can again. `is_momentary`: what happened is over
    and is never cleared, as a line in the kernel's log.
    `scope`: a `host` alert concerns every node of the machine `boot_id`. `lines` are what was read, word for word.
    """

    check: str
    state: Literal["alert", "cleared", "broken"]
    confidence: Literal["evict", "tolerate", "hint"]
    symptom: str = ""
    scope: Literal["node", "host"] = "node"
    boot_id: str = ""
    device: str = ""
    kind: str = ""
    is_momentary: bool = False
    detail: str = ""
    lines: tuple[str, ...] = ()


class DiagnosticResult(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """What one stop-time test found out on one node, or between it and its `peers`, in round `round` of its run.

    `run` is the same for all results of one run of checks. `status`: `passed`; `failed` speaks against the node, or
    against it or one of its `peers`; `broken` and `skipped` say nothing of health. `value` is what was measured, in
    `unit`, `needed` the least that would have passed; `digest` is an answer that must be the same on all nodes with the
    same `hardware` and version of the test, `program`. `boot_id` is that of the node's machine. `done` of `total`
    tests of this node are over.
    """

    run: str
    test: str
    status: Literal["passed", "failed", "broken", "skipped"]
    symptom: str = ""
    peers: tuple[Name, ...] = ()
    round: Count = 0
    device: str = ""
    value: float | None = None
    needed: float | None = None
    unit: str = ""
    digest: str = ""
    hardware: str = ""
    program: str = ""
    boot_id: str = ""
    took_s: float = 0.0
    detail: str = ""
    done: Count = 0
    total: Count = 0


class ReplayResult(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """What one rank of a group computed when it trained again what had gone wrong; `rank` is its place in its group."""

    rank: Count
    replay: RankReplay
    took_s: float = 0.0


class StackDump(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """What the processes of a node's ranks are doing: one of `parts` events of this node that answer `trace`.

    A process that could not be read is there all the same, and says why. `took_s`: of the whole round on this node.
    `links`: what the node knows of its network, in the first part.
    """

    trace: Id
    processes: tuple[ProcessStacks, ...]
    part: Count = 1
    parts: Count = 1
    took_s: float = 0.0
    links: NodeLinks | None = None


class CollectiveTrace(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """What a node's ranks remember of their collectives: one of `parts` events of this node that answer `trace`.

    Times in it are nanoseconds since `origin` (`holdfast.engines.hang.event_times`).
    """

    trace: Id
    ranks: tuple[RankTrace, ...]
    origin: Moment
    part: Count = 1
    parts: Count = 1
    took_s: float = 0.0


class CollectivesProfiled(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """How the ranks of a node spent their last iterations, by the collectives that they remember, as `asked`.

    The job's ranks lie on its nodes by `node_rank` and `nproc_per_node`; `endpoint` is where the node's agent takes
    test transfers.
    """

    asked: Id
    ranks: tuple[RankProfile, ...]
    node_rank: Count
    nnodes: Count
    nproc_per_node: Count
    mesh: str | None = None
    endpoint: Endpoint | None = None


class SlownessTested(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """What a node measured while training was held, as `asked`: matrix products as soon as its ranks were held, then
    transfers, if any were wanted.

    `held` are its ranks that stood still meanwhile. `compute_s`: by rank, seconds a matrix product took, the median of
    `compute_turns_s`; `transfers`:
    sender and receiver by node rank, and seconds for each transfer that this node sent. `unread`: what could not be
    measured, and why. `held_s`: how long all its ranks have been held.
    """

    asked: Id
    node_rank: Count
    stage: SlowStage = "hold"
    held: tuple[Count, ...] = ()
    compute_s: tuple[tuple[Count, float], ...] = ()
    compute_turns_s: tuple[tuple[Count, tuple[float, ...]], ...] = ()
    transfers: tuple[tuple[Count, Count, float], ...] = ()
    unread: tuple[str, ...] = ()
    took_s: float = 0.0
    held_s: float = 0.0


class CodeNotInPlace(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A node could not get a version of the job's code, so the ranks that were to run it were not started."""

    version: str
    detail: str


class ShardDamaged(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of a checkpoint are not those that were sealed; another copy takes their place. `held_by` is the node whose
    memory they were in.
    """

    rank: Count
    step: Step
    held_by: Name
    detail: str


class StepNotPersisted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A step that was due for the disk is not there; those before it still are. Said every half minute at most:
    `others` steps since the last were left out as well."""

    step: Step
    reason: str
    others: Count = 0


class OrderRefused(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent read an order older than the newest it obeyed. If it is the true one, the newest was never given."""

    epoch: Count
    newest_epoch: Count
    newest_generation: Count


class FaultInjected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody broke something on purpose (`holdfast inject`), or has undone it: what follows is a
    drill.


    Said before it is done. `injection` is the same in both. `symptom` is one of `holdfast.symptoms`;
    without a `node`, the fault strikes a whole machine. `options` are those that were set, each as name=value.
    """

    injection: Id
    fault: str
    by: str
    state: Literal["injected", "undone"] = "injected"
    symptom: str = ""
    rank: Count | None = None
    options: tuple[str, ...] = ()


class MessageRejected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A message could not be understood or handled; it lies whole in the dead-letter stream."""

    subject: str
    consumer: str
    error: str
    body_bytes: Count
    deliveries: Count


AnyEvidence = (
    NodeRegistered
    | NodeInspected
    | NodeDeparted
    | ProcessExited
    | LogSignature
    | FirstStep
    | Progress
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
    | OrderRefused
    | FaultInjected
    | MessageRejected
)
