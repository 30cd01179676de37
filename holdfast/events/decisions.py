"""Decisions of services, each with its reason."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Decision
from holdfast.events.parts.job import JobSpec, Purpose
from holdfast.events.parts.ranks import Suspect
from holdfast.events.parts.scalars import Code, Count, Id, Moment, Name, Step


class JobSubmitted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The controller accepted a job."""

    spec: JobSpec


class NodesRequested(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job claims nodes from the standby service; the event's id is the id of the claim."""

    count: Count
    enough: Count | None = None
    """It waits for no more than these; None: for all. Fewer do once `at_least` have been free for `last_call_s`."""
    at_least: Count | None = None
    """Fewest that it accepts; None: all."""
    last_call_s: float = 0.0
    only: tuple[Name, ...] = ()
    """These nodes and no others. For `checks`, which are short, they may be on the blocklist."""
    witnesses: Count = 0
    """Up to this many free nodes are granted beside `only`, and at least enough to reach `count`."""
    purpose: Purpose = "train"
    trains_on: bool = False
    """The job goes on until they are granted, with the nodes that they replace."""
    leaves_reserve: bool = False
    """Standbys that the pool reserves for failures are not taken, and other running jobs go first."""
    avoid: tuple[Name, ...] = ()
    """Nodes to grant only if no others are free, the worst first: by their records they may be at fault."""
    avoid_racks: tuple[Name, ...] = ()
    """Racks whose nodes to grant only if no others are free: more of them fail than chance has it. The worst first."""
    why_avoided: str = ""
    """Evidence against the worst racks, as a sentence."""


class NodesReleased(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job gives nodes back; at its end it also withdraws its open claim. By the controller."""

    nodes: tuple[Name, ...]
    withdraws_claim: bool = False
    epochs: tuple[Count, ...] = ()
    """Epochs at which it held the nodes; the event does not concern later hand-overs."""
    departed: tuple[Id, ...] = ()
    """Instances of agents that were shut down: their nodes are not free, though `node_departed` may arrive later."""


class GenerationStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of ranks is started on these nodes; by the controller."""

    nodes: tuple[Name, ...]
    """Nodes in the order of their node ranks."""
    world_size: Count
    restore_step: Step | None = None
    restore_at_most: Step | None = None
    """Newest step that its ranks may restore; None: any."""
    nproc_per_node: Count = 0
    mesh: str | None = None
    submitted_at: Moment | None = None
    vaults: tuple[str, ...] = ()
    """Address `host:port` of each node's vault, "" if it has none."""
    racks: tuple[str, ...] = ()
    """For each node its rack, "" if it named none; () if no node did."""
    persist_every: str = ""
    """Distance of checkpoints on disk as the job asked for it; "": the cluster's setting."""
    purpose: Purpose = "train"
    """Purpose of the generation; only `train` makes and needs checkpoints."""
    code_version: str | None = None
    """Version of the code that the ranks run; None: the script is not under versions."""


class BackupsPlanned(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Every `every`-th step of a generation is copied to another node's memory; by the ckpt coordinator.

    Published for each generation, and when `every` changes. It belongs to no incident: no recovery waits for it.
    """

    strategy: str
    protects: str
    """The largest loss that leaves a copy of every shard: nothing, one node, or a whole parallel group."""
    every: Count
    persist_every: Count = 0
    """Every `persist_every`-th step also goes to disk; 0: none, or the step time is not known yet."""


class IncidentOpened(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Something went wrong in a job; all events that follow from it carry this incident's id. By the controller."""

    symptom: str
    table_one: str = ""
    """Row of ByteRobust's Table 1 that the symptom belongs to, as known at this time."""
    root: str = ""
    """infrastructure, user_code or unknown, as known at this time."""
    failed_step: Step
    rank: Count | None = None


class IncidentDiagnosed(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The conclusion of an incident from all evidence so far; published again when later evidence changes it.

    `node` and `rank` are those that failed first, if that is known. The incident may have been closed, less than a
    minute before. By the controller.
    """

    symptom: str
    table_one: str = ""
    root: str = ""
    rank: Count | None = None
    proof: Literal["", "claimed", "proven"] = ""
    """Strength of the evidence against the machine: `claimed` by a rank's own output, `proven` by what no script can
    forge."""
    confidence: float = 0.0
    rule: str = ""
    """The rule that decided; see `holdfast classify`."""
    advice: str = ""
    lines: tuple[str, ...] = ()
    """Lines of evidence, each with its source."""
    evidence: tuple[Id, ...] = ()
    """Events that it rests on."""


class Reattempt(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "restart in place": same nodes, next generation."""

    attempt: Count


class Eviction(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "evict": a node leaves the job and goes on the blocklist."""

    blocked_for_s: float
    epoch: Count = 0
    """Epoch at which the job held the node."""
    together: tuple[Name, ...] = ()
    """Nodes, itself included, of which one is at fault without proof which; or a single one that may be innocent. They
    are tested beside training, see `SuspectsTested`."""
    evidence: tuple[Id, ...] = ()
    """Events that it rests on."""


class EvictionRevoked(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """An evicted node is not at fault and leaves the blocklist."""

    epoch: Count = 0
    """Epoch at which the evicted node was held."""


class Withheld(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A rung that was not taken: `mechanism` only observes, the circuit breaker (`breaker`) is open, no node is free to
    replace the one that would leave (`no_replacement`), or nothing but ranks accuses it, as it did others of this job
    lately (`accusations`)."""

    mechanism: str
    rung: str


class BreakerOpened(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Too many of a job's nodes were evicted in `window_s`: no more evictions until a person resets the breaker."""

    evictions: Count
    window_s: float


class BreakerReset(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person allows evictions from this job again."""


class SharedFaultFound(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Several nodes report the same about something that they share: it is at fault, and none of the nodes.

    It has a separate incident. The job goes on if it trains.
    """

    thing: str
    """For example `address 10.0.0.1`, `file system nfs1:/data` or `rack r7`."""
    symptom: str
    nodes: tuple[Name, ...]
    """Nodes that have reported it by now."""


class SharedFaultOver(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """No node reports the shared fault any more."""

    thing: str
    nodes: tuple[Name, ...]
    """All nodes that reported it."""


class ChecksStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "stop-time checks": the job's ranks are stopped, and its nodes are tested.

    The generation of this event belongs to the checks; each `diagnostic_result` carries it.
    """

    suite: str
    nodes: tuple[Name, ...]
    deadline_s: float
    """Seconds from now."""


class ChecksEnded(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The overall result of the checks of a job's nodes."""

    suspects: tuple[Suspect, ...] = ()
    took_s: float = 0.0


class ReplayStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "dual-phase replay": each of `groups` repeats the training that failed.

    The generation of this event belongs to this phase; each `replay_result` carries it.
    """

    phase: Literal["horizontal", "vertical"]
    groups: tuple[tuple[Name, ...], ...]
    """Each with its nodes in the order of node ranks."""
    mesh: str
    """Shape of each group."""
    until_step: Step
    deadline_s: float
    """Seconds from now."""
    repeat: bool = False
    """The phase runs once more because its first result was not enough."""


class ReplayEnded(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The overall result of the replays."""

    suspects: tuple[Name, ...] = ()
    candidates: tuple[Name, ...] = ()
    """Nodes of which some are at fault, without proof which."""
    findings: tuple[str, ...] = ()
    took_s: float = 0.0


class Suspension(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job's remaining ranks are stopped while it waits for nodes or for a service elsewhere."""

    pause_s: float = 0.0
    """Seconds until the next start, if it waits for a service; 0: it waits for nodes."""
    keeps: tuple[Name, ...] = ()
    """Nodes with steps of the job in memory: no other job gets them until the incident is closed, or for long after
    the pause."""


class StepsLost(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A generation went on from an older step than the newest that could be restored before; by the controller."""

    step: Step
    """The step that it went on from; 0: from the beginning."""
    newest_step: Step
    """The newest step that the job had reached."""
    lost_steps: Count
    nodes: tuple[Name, ...] = ()
    """Nodes of the ranks whose newer shards were gone, if they are known."""


class IncidentClosed(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """An incident is over."""

    outcome: str
    """`recovered`, or the outcome of the job."""
    attempts: Count
    symptom: str = ""
    """Final symptom; later evidence may show more than the first sign."""
    summary: str = ""
    lost_steps: Count = 0
    """Steps that were lost though they could have been restored before; see `steps_lost`."""
    redone_steps: Count | None = None
    """Steps completed before the failures that had to be trained again; None: not known."""


class JobFinished(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job is over: completed, failed or stopped."""

    outcome: str
    exit_code: Code
    traceback: str = ""


class JobStopping(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "stop": all ranks of a job are ended for good, by a person or the ladder."""


class UpdatePlanned(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person wants another version of the code to run."""

    version: str
    is_urgent: bool = False
    """True: the update happens at once; else with the next failure, or at `until`."""
    until: Moment | None = None


class UpdateWithdrawn(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A version that waited will not be started: a person wants the present one to stay."""

    version: str


class HotUpdate(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The next generation runs another version of the code than `previous`, on the same machines."""

    version: str
    number: Count
    previous: str | None = None
    commit: str = ""
    rides_on_failure: bool = False
    """The version waited for a restart, and this is one."""
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed_files: Count = 0
    """Number of files that differ; the lists name the first of them."""


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
    """A version of a job's code turned out `good` or `bad`, or is `unknown` again.

    A version is good when it has trained for long enough.
    """

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
    | IncidentDiagnosed
    | Reattempt
    | Eviction
    | EvictionRevoked
    | Withheld
    | BreakerOpened
    | BreakerReset
    | SharedFaultFound
    | SharedFaultOver
    | ChecksStarted
    | ChecksEnded
    | ReplayStarted
    | ReplayEnded
    | Suspension
    | StepsLost
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
