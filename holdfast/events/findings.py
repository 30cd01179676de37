"""Conclusions drawn from facts; they change nothing by themselves."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Finding
from holdfast.events.parts.devices import IdleDevice
from holdfast.events.parts.ranks import CodePlace, HangSuspect, Suspect
from holdfast.events.parts.samples import FlaggedGroup, GroupPace, RankPace, SlowCause, StackRound
from holdfast.events.parts.scalars import Count, Id, Integer, Moment, Name, Step, StepSeconds


class NodeLost(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The standby service received no heartbeat of a node for too long, but those of others on the same bus."""

    last_heard_at: Moment
    silent_s: float
    epoch: Count = 0
    """Epoch of the node at its loss; the event does not concern later hand-overs."""
    is_unheard: bool = False
    """True if the service has received nothing from it since its own connection began: the node may have lost power
    together with the services, and start later than they do."""


class StepTimeMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The duration of a step of this job now, by the analyzer; limits adapt to it."""

    median_s: StepSeconds
    p99_s: StepSeconds
    samples: Count
    """Steps that were measured."""


class ThroughputMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The speed of the job, by the medians of its last steps; by the analyzer, at most every 10 s."""

    step: Step
    step_s: float
    tokens_per_s: float | None = None
    """Tokens per second of the whole job; None: not known."""
    mfu: float | None = None
    """Model FLOPs utilization, from 0 to 1; None: not known."""
    is_logged: bool = False
    """`tokens_per_s` and `mfu` are from a training log."""


class MfuDeclined(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job has trained markedly slower for many steps; by the analyzer."""

    step: Step
    since_step: Step
    """First slow step."""
    share_left: float
    """Present pace as a share of the usual one."""
    step_s: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization, from 0 to 1; None: not known."""
    symptom: str = ""


class FailSlowOnset(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job became slower and stays so; by the analyzer."""

    before_s: float
    """Seconds of an iteration before."""
    after_s: float
    """Seconds of an iteration since."""
    healthy_s: float
    """Seconds of an iteration before the job first became slow."""
    iteration: Count
    """First slow iteration."""
    detected_after: Count
    """Iterations at the new pace until this was detected."""
    ranks: tuple[Count, ...] = ()
    """Ranks whose iterations show it."""
    symptom: str = ""


class FailSlowRelieved(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job became faster again; by the analyzer. Fields as in `FailSlowOnset`."""

    before_s: float
    after_s: float
    healthy_s: float
    iteration: Count
    detected_after: Count
    ranks: tuple[Count, ...] = ()
    is_over: bool = False
    """The job is back at its healthy pace."""


class FailSlowLocated(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Machines that make the job slow, as far as the evidence goes; by the analyzer.

    Where neither collectives nor tests name a machine, stacks are taken in `rounds`: `one_of` are the machines of the
    group whose stacks differed from the others in most rounds. One of them is at fault.
    """

    asked: Id
    """Id of the analysis."""
    fault: SlowCause = "unknown"
    nodes: tuple[Name, ...] = ()
    """Nodes to replace: those of slow `ranks`, and those all of whose links are slow."""
    ranks: tuple[Count, ...] = ()
    links: tuple[tuple[Name, Name], ...] = ()
    """(sender, receiver) of slow links. One slow link names neither of its nodes."""
    suspects: tuple[Name, ...] = ()
    slowdown: float = 1.0
    """Present pace over the healthy one, in seconds per iteration."""
    is_validated: bool = False
    """Tests while training was held confirm it; otherwise it is inferred from collectives."""
    pace_s: float = 0.0
    """Seconds of an iteration now; 0: not known."""
    healthy_s: float = 0.0
    """Seconds of an iteration before; 0: not known."""
    summary: str = ""
    evidence: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    """Imbalances that are no machine's fault."""
    pace: tuple[RankPace, ...] = ()
    groups: tuple[GroupPace, ...] = ()
    unanswered: tuple[Name, ...] = ()
    took_s: float = 0.0
    held_s: float = 0.0
    asked_by: str = ""
    """A person; "": the analyzer."""
    one_of: tuple[Name, ...] = ()
    confidence: float = 0.0
    """Confidence that one of `one_of` is at fault, from 0 to 1."""
    flagged: tuple[FlaggedGroup, ...] = ()
    """Groups that differed, with the number of rounds."""
    rounds: tuple[StackRound, ...] = ()


class DeadlinePassed(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Something that had to happen did not happen in time."""

    awaited: str
    waited_s: float
    missing_nodes: tuple[Name, ...] = ()


class SuspectsTested(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Results of tests beside training of nodes that were evicted together or were slow; by the controller."""

    run: Name
    """Name of the job that tested them."""
    cleared: tuple[Name, ...] = ()
    """Nodes that leave the blocklist, since they passed."""
    at_fault: tuple[Suspect, ...] = ()
    """Nodes that stay on the blocklist, since they failed."""
    in_doubt: tuple[Name, ...] = ()
    """Nodes that stay on the blocklist, since the tests do not decide."""
    took_s: float | None = None
    """Seconds from the eviction to the results."""
    pool_s: float = 0.0
    """Cost to the pool: seconds that the cleared nodes and the witnesses were away, added up."""
    reason: str = ""


class TelemetryAnomaly(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The telemetry of ranks differs from healthy training: a hint, which stops no job; by the analyzer."""

    by: Literal["metrics", "errors"]
    """`metrics`: at least two of the three detectors. `errors`: more lines of trouble than usual."""
    ranks: tuple[Count, ...] = ()
    """Empty: the whole job."""
    nodes: tuple[Name, ...] = ()
    detectors: tuple[str, ...] = ()
    """Detectors that found the anomaly."""
    strange: tuple[float, ...] = ()
    """Score of each detector as a multiple of its threshold."""
    version: str = ""
    """Version of the model."""
    first_node: Name | None = None
    """Node that printed the first line of trouble, `line`."""
    line: str = ""
    lines: Count = 0
    reason: str = ""


class StepRestorable(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Every shard of a checkpoint of this step is in place; by the ckpt coordinator."""

    step: Step
    path: str
    checkpoint_bytes: Count


class BadNumber(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A loss or gradient norm shows that training is spoiled since `step` or the step before; by the analyzer."""

    step: Step
    quantity: Literal["loss", "grad_norm"]
    kind: Literal["nan", "inf", "jump"]
    """The fault of `quantity`."""
    rank: Count | None = None
    value: float | None = None
    """None if it is not finite."""
    level: float | None = None
    """The usual value."""
    certified: Step | None = None
    """Newest step known to be clean; None: there is none."""
    told_by: Literal["", "tensorboard", "wandb"] = ""
    """The training log with the number; "": the script reported it. A log may be some steps late."""
    tag: str = ""
    """Tag in that log."""
    logged_step: Integer | None = None
    """Step in that log."""
    elsewhere: Literal["", "sound", "bad"] = ""
    """State of `quantity` at `step` by the reports of other nodes; "": none. A number that was reduced over all ranks
    is bad on other nodes too; then `rank` is only the one that reported first."""


class StepsCertified(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """All steps up to `step` are known to be clean from what followed; by the analyzer, at most every 2 s.

    It is lower than before when a generation went back.
    """

    step: Step
    newest_step: Step
    """Newest step that all ranks completed."""


HangSign = Literal["no_step", "no_traffic", "waiting"]
"""No step for very long, though something moves; nothing moves; ranks wait in collectives for some that do not."""


class HangSuspected(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A job makes no progress, and the stacks of its processes are ordered (`trace`); by the analyzer.

    No more is known at this point.
    """

    trace: Id
    sign: HangSign
    still_s: float
    """Seconds without progress; more than `limit_s`."""
    limit_s: float
    """Limit for `phase` and for the job's own pace."""
    phase: str
    step: Step
    standing: tuple[Count, ...] = ()
    """Ranks outside of collectives; the first if there are very many."""
    waiting: tuple[Count, ...] = ()
    """Ranks inside a collective; the first if there are very many."""


class JobTraced(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The stacks of a job's processes, and the ranks that hold it up, if any; by the analyzer."""

    trace: Id
    suspects: tuple[HangSuspect, ...] = ()
    scope: Literal["machine", "group", "nobody"] = "nobody"
    """The evidence names single machines, only a group, or no machine (`nobody`)."""
    confidence: float = 0.0
    """Confidence, from 0 to 1."""
    summary: str = ""
    evidence: tuple[str, ...] = ()
    places: tuple[CodePlace, ...] = ()
    """Places in the code where the processes are, the most crowded first."""
    working: tuple[Count, ...] = ()
    """Suspected ranks whose processes compute, read or write."""
    unread: tuple[str, ...] = ()
    """Processes without stacks, and why."""
    unanswered: tuple[Name, ...] = ()
    """Nodes that did not answer in time."""
    processes: Count = 0
    took_s: float = 0.0
    still_s: float = 0.0
    """Seconds for which no rank had noted anything. In a job that moves, the suspects are those that others wait for
    now."""
    asked_by: str = ""
    """A person; "": the analyzer."""


class HangFound(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A job hangs, with the suspected ranks by the trace of the same id; by the analyzer."""

    trace: Id
    sign: HangSign
    since: Moment
    still_s: float
    limit_s: float
    phase: str
    step: Step
    nodes: tuple[Name, ...] = ()
    """Machines of the suspected `ranks`, the smallest set that the evidence names."""
    ranks: tuple[Count, ...] = ()
    scope: Literal["machine", "group", "nobody"] = "nobody"
    confidence: float = 0.0
    """Confidence, from 0 to 1."""
    is_machine: bool = False
    """A process is stopped, stuck in the kernel or unreadable, which is a fault of the machine. Other hangs may be
    caused by the script as well."""
    is_by_signal: bool = False
    """True if nothing but a signal stopped these processes, which the script may have sent to itself."""
    symptom: str = ""
    """A name of `holdfast.symptoms`, by what the suspected ranks wait for inside the kernel; "": none."""
    group: tuple[Name, ...] = ()
    """Machines of a parallel group that is convincing enough to evict it as a whole, the most suspect first."""
    idle: tuple[IdleDevice, ...] = ()
    """Devices without an activity that most others have: a reason to test their nodes first, and no proof."""
    summary: str = ""
    evidence: tuple[str, ...] = ()


AnyFinding = (
    NodeLost
    | StepTimeMeasured
    | ThroughputMeasured
    | MfuDeclined
    | FailSlowOnset
    | FailSlowRelieved
    | FailSlowLocated
    | DeadlinePassed
    | SuspectsTested
    | TelemetryAnomaly
    | StepRestorable
    | BadNumber
    | StepsCertified
    | HangSuspected
    | JobTraced
    | HangFound
)
