"""What shall be done, and why."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Decision
from holdfast.events.parts.job import JobSpec, Purpose
from holdfast.events.parts.ranks import Suspect
from holdfast.events.parts.scalars import Code, Count, Moment, Name, Step


class JobSubmitted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job was accepted."""

    spec: JobSpec


class NodesRequested(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job claims nodes; its id is the claim's id.

    `only`: these and no others. For `checks`, which are over soon, also nodes on the blocklist may be named. Up to
    `witnesses` free nodes come with those that are named, and at least as many as make up `count`.
    """

    count: Count
    only: tuple[Name, ...] = ()
    witnesses: Count = 0
    purpose: Purpose = "train"


class NodesReleased(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job gives nodes back; at its end it also withdraws what it still claims.

    `epochs` are those at which it held the nodes: a later hand-over of a node is not meant.
    """

    nodes: tuple[Name, ...]
    withdraws_claim: bool = False
    epochs: tuple[Count, ...] = ()


class GenerationStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of ranks is to run on these nodes, in the order of their node ranks.

    `vaults` says where each of them answers for its checkpoints in memory, `host:port`, "" for one that has none.
    `persist_every` is how often the job wants a step on the disk.
    `restore_at_most` is the newest step that its ranks may restore; None: any. Only one whose `purpose` is to train
    makes and needs checkpoints. `code_version` is the version of the code that they run; None: the script where it
    lies.
    """

    nodes: tuple[Name, ...]
    world_size: Count
    restore_step: Step | None = None
    restore_at_most: Step | None = None
    nproc_per_node: Count = 0
    mesh: str | None = None
    submitted_at: Moment | None = None
    vaults: tuple[str, ...] = ()
    persist_every: str = ""
    purpose: Purpose = "train"
    code_version: str | None = None


class BackupsPlanned(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Every `every`-th step of a generation gets a second copy, in the memory of another node.

    `protects` is the largest loss that leaves a copy of every shard: nothing, one node, or a whole parallel group. Said
    for each generation, and when `every` changes. It belongs to no incident: no recovery waits for it. Every
    `persist_every`-th step goes to the disk as well; 0: none does, or it is not known yet how long a step takes.
    """

    strategy: str
    protects: str
    every: Count
    persist_every: Count = 0


class IncidentOpened(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Something went wrong in a job; all that follows carries this incident's id.

    `table_one` is the row of ByteRobust's Table 1 that the symptom belongs to, `root` where its cause lies:
    infrastructure, user_code or unknown. Both are what was known then.
    """

    symptom: str
    table_one: str = ""
    root: str = ""
    failed_step: Step
    rank: Count | None = None


class Reattempt(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "restart in place": same nodes, next generation."""

    attempt: Count


class Eviction(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "evict": the node, as held at `epoch`, leaves the job and goes on the blocklist.

    `together`: these nodes, itself included, are evicted because one of them is at fault and nobody can tell which; or
    one is, because either it or another that stays is, or because it was slow, which may pass. They are tested beside
    training; see `SuspectsTested`.
    """

    blocked_for_s: float
    epoch: Count = 0
    together: tuple[Name, ...] = ()


class EvictionRevoked(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The node that was evicted as held at `epoch` is not at fault: it leaves the blocklist."""

    epoch: Count = 0


class Withheld(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """What would have been done, and was not: `mechanism` only observes, or the circuit breaker (`breaker`) is open."""

    mechanism: str
    rung: str


class BreakerOpened(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Too many of a job's nodes were evicted in a short time: none is any more until a person resets the breaker."""

    evictions: Count
    window_s: float


class BreakerReset(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person lets nodes of this job be evicted again."""


class ChecksStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "stop-time checks": the job's ranks are stopped, and its nodes are tested until `deadline_s` from now.

    The generation of this event belongs to the checks, and stands in each `diagnostic_result`.
    """

    suite: str
    nodes: tuple[Name, ...]
    deadline_s: float


class ChecksEnded(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """What the checks of a job's nodes say in sum."""

    suspects: tuple[Suspect, ...] = ()
    took_s: float = 0.0


class ReplayStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "dual-phase replay": each of `groups` trains again what went wrong, until `deadline_s` from now.

    The generation of this event belongs to this phase, and stands in each `replay_result`. `repeat`: it is run once
    more, for what it said before was not enough. Groups are of shape `mesh`, their nodes in the order of node ranks.
    """

    phase: Literal["horizontal", "vertical"]
    groups: tuple[tuple[Name, ...], ...]
    mesh: str
    until_step: Step
    deadline_s: float
    repeat: bool = False


class ReplayEnded(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """What the replays say in sum. `candidates` are nodes of which some are at fault, and nothing tells which."""

    suspects: tuple[Name, ...] = ()
    candidates: tuple[Name, ...] = ()
    findings: tuple[str, ...] = ()
    took_s: float = 0.0


class Suspension(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job's remaining ranks are stopped while it waits for nodes; or, with `pause_s`, for a service elsewhere to
    serve it again: after so long it is tried.
    """

    pause_s: float = 0.0


class IncidentClosed(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """An incident is over: `outcome` is recovered, or the job's own end.

    `symptom` and `summary` are what it turned out to be: later evidence may have told more than the first sign.
    """

    outcome: str
    attempts: Count
    symptom: str = ""
    summary: str = ""


class JobFinished(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job is over: completed, failed or stopped."""

    outcome: str
    exit_code: Code
    traceback: str = ""


class JobStopping(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "stop": all ranks of a job are ended for good, because a person or the ladder says so."""


class UpdatePlanned(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person wants another version of the code: `is_urgent` at once, else with the next failure, or at `until`."""

    version: str
    is_urgent: bool = False
    until: Moment | None = None


class UpdateWithdrawn(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A version that waited will not be brought in: a person wants the present one to stay."""

    version: str


class HotUpdate(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The next generation runs another version of the code than `previous`, on the same machines.

    `rides_on_failure`: it waited for a restart, and this is one. Of the `changed_files` that differ the first are
    named.
    """

    version: str
    number: Count
    previous: str | None = None
    commit: str = ""
    rides_on_failure: bool = False
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed_files: Count = 0


class Rollback(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "roll back": the next generation runs an earlier version of the code again.

    The lists are what `previous` had changed since that version: where to look for the fault.
    """

    version: str
    number: Count
    previous: str
    is_automatic: bool = False
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed_files: Count = 0


class CodeJudged(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a job's code turned out `good` (it has trained for long enough) or `bad`, or is `unknown` again."""

    version: str
    verdict: str


class NodeReleaseRequested(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person takes a node off the blocklist."""


AnyDecision = (
    JobSubmitted
    | NodesRequested
    | NodesReleased
    | GenerationStarted
    | BackupsPlanned
    | IncidentOpened
    | Reattempt
    | Eviction
    | EvictionRevoked
    | Withheld
    | BreakerOpened
    | BreakerReset
    | ChecksStarted
    | ChecksEnded
    | ReplayStarted
    | ReplayEnded
    | Suspension
    | IncidentClosed
    | JobFinished
    | JobStopping
    | UpdatePlanned
    | UpdateWithdrawn
    | HotUpdate
    | Rollback
    | CodeJudged
    | NodeReleaseRequested
)
