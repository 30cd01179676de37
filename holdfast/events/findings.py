"""Conclusions drawn from facts; they change nothing by themselves."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Finding
from holdfast.events.parts.ranks import HangSuspect, StandingPlace, Suspect
from holdfast.events.parts.samples import FlaggedGroup, GroupPace, RankPace, SlowCause, StackRound
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Step


class NodeLost(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing was heard of a node for too long, while others were heard on the same bus.

    `epoch` is the node's at its loss: a later hand-over of the node is not meant.
    """

    last_heard_at: Moment
    silent_s: float
    epoch: Count = 0


class StepTimeMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """What a step of this job takes now; limits adapt to it."""

    median_s: float
    p99_s: float
    samples: Count


class ThroughputMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """How fast the job trains now, by the medians of its last steps. Said every ten seconds at most.

    `tokens_per_s` is that of the whole job, `mfu` a share of 1; None: nobody told what it takes to know. `is_logged`:
    both are as a training log has them.
    """

    step: Step
    step_s: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    is_logged: bool = False


class MfuDeclined(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job trains markedly slower than it did, since `since_step` and for many steps: `share_left` of its pace."""

    step: Step
    since_step: Step
    share_left: float
    step_s: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    symptom: str = ""


class FailSlowOnset(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job got slower and stays so: an iteration took `before_s`, now `after_s`, since `iteration`.

    It was said after `detected_after` iterations at the new pace. `healthy_s` is the pace before it ever got slow.
    `ranks` are those whose iterations show it.
    """

    before_s: float
    after_s: float
    healthy_s: float
    iteration: Count
    detected_after: Count
    ranks: tuple[Count, ...] = ()
    symptom: str = ""


class FailSlowRelieved(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job got faster again; `is_over`: it is back at its healthy pace. Fields as in `FailSlowOnset`."""

    before_s: float
    after_s: float
    healthy_s: float
    iteration: Count
    detected_after: Count
    ranks: tuple[Count, ...] = ()
    is_over: bool = False


class FailSlowLocated(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Who makes the job slow, as far as the evidence says.

    `asked` is the number of the analysis. `nodes` are to be replaced: those of slow `ranks`, and those all of whose
    links are slow; a slow link of two nodes names neither (`links`: sender and receiver). `is_validated`: tests say so
    that ran while training was held; otherwise it is what collectives show. `harmless` are imbalances that are no
    machine's fault. `pace_s` is an iteration now, `healthy_s` one before; 0: not known. `asked_by`: a person; "": the
    analyzer.

    Where neither tells anybody, stacks are taken in `rounds`: `one_of` are the machines of the group that stood
    elsewhere than most in most of them, with `confidence`; one of these is at fault. `flagged`: who was so how often.
    """

    asked: Id
    fault: SlowCause = "unknown"
    nodes: tuple[Name, ...] = ()
    ranks: tuple[Count, ...] = ()
    links: tuple[tuple[Name, Name], ...] = ()
    suspects: tuple[Name, ...] = ()
    slowdown: float = 1.0
    is_validated: bool = False
    pace_s: float = 0.0
    healthy_s: float = 0.0
    summary: str = ""
    evidence: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    pace: tuple[RankPace, ...] = ()
    groups: tuple[GroupPace, ...] = ()
    unanswered: tuple[Name, ...] = ()
    took_s: float = 0.0
    held_s: float = 0.0
    asked_by: str = ""
    one_of: tuple[Name, ...] = ()
    confidence: float = 0.0
    flagged: tuple[FlaggedGroup, ...] = ()
    rounds: tuple[StackRound, ...] = ()


class DeadlinePassed(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Something that had to happen did not happen in time."""

    awaited: str
    waited_s: float
    missing_nodes: tuple[Name, ...] = ()


class SuspectsTested(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """What tests beside training say of nodes that the job evicted together, because one of them was at fault, or of
    one that was slow.

    `run` is the job that tested them. `cleared` nodes leave the blocklist; those `at_fault` and `in_doubt` stay on it.
    """

    run: Name
    cleared: tuple[Name, ...] = ()
    at_fault: tuple[Suspect, ...] = ()
    in_doubt: tuple[Name, ...] = ()
    reason: str = ""


class TelemetryAnomaly(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Something about the ranks is not as in healthy training. It is a hint, and changes nothing by itself.

    `by`: `metrics` (two of the three `detectors` at least, of model `version`; `strange` says how many times its
    threshold each found), or `errors`: more lines of trouble than usual, of which `first_node` printed the first,
    `line`. Without `ranks` it is the whole job.
    """

    by: Literal["metrics", "errors"]
    ranks: tuple[Count, ...] = ()
    nodes: tuple[Name, ...] = ()
    detectors: tuple[str, ...] = ()
    strange: tuple[float, ...] = ()
    version: str = ""
    first_node: Name | None = None
    line: str = ""
    lines: Count = 0
    reason: str = ""


class StepRestorable(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Every shard of a checkpoint of this step is in place."""

    step: Step
    path: str
    checkpoint_bytes: Count


class BadNumber(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A loss or gradient norm shows that the training is spoiled since `step`, or since the step before.

    `kind` is what is wrong with `quantity`. `value` is None where it is not finite; `level` is what was usual.
    `certified` is the newest step known to be clean; None: none is. `told_by`: the training log that says so, under
    `tag` at its `logged_step`; "": the script's own word by the library. A log may say it some steps late.
    """

    step: Step
    quantity: Literal["loss", "grad_norm"]
    kind: Literal["nan", "inf", "jump"]
    rank: Count | None = None
    value: float | None = None
    level: float | None = None
    certified: Step | None = None
    told_by: Literal["", "tensorboard", "wandb"] = ""
    tag: str = ""
    logged_step: int | None = None


class StepsCertified(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Up to `step` all is known to be clean, by what followed. `newest_step` is the newest that all ranks completed.

    Said every two seconds at most. It is lower than before when a generation went back.
    """

    step: Step
    newest_step: Step


HangSign = Literal["no_step", "no_traffic", "waiting"]
"""No step for very long, though something moves; nothing moves; ranks wait in collectives for some that do not."""


class HangSuspected(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A job makes no progress: its processes are asked what they do (`trace`). No more than that is known yet.

    `still_s` is over `limit_s`, which is that of `phase` and of the job's own pace. `standing` are the ranks that stand
    outside of collectives, `waiting` those inside one; the first of very many.
    """

    trace: Id
    sign: HangSign
    still_s: float
    limit_s: float
    phase: str
    step: Step
    standing: tuple[Count, ...] = ()
    waiting: tuple[Count, ...] = ()


class JobTraced(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """What the processes of a job were seen to do, and who holds it up by that, if anybody.

    `scope`: the evidence names single machines, only a group, or nobody. `places` are where the processes stand, the
    most crowded first. `working` are suspected ranks whose processes compute, read or write. `unread` are processes
    that gave no stacks and why, `unanswered` nodes that gave no answer in time. `still_s`: for how long no rank had
    noted anything; of a job that moves, the suspects are those that others wait for just now. `asked_by`: a person;
    "": the analyzer.
    """

    trace: Id
    suspects: tuple[HangSuspect, ...] = ()
    scope: Literal["machine", "group", "nobody"] = "nobody"
    confidence: float = 0.0
    summary: str = ""
    evidence: tuple[str, ...] = ()
    places: tuple[StandingPlace, ...] = ()
    working: tuple[Count, ...] = ()
    unread: tuple[str, ...] = ()
    unanswered: tuple[Name, ...] = ()
    processes: Count = 0
    took_s: float = 0.0
    still_s: float = 0.0
    asked_by: str = ""


class HangFound(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A job hangs since `since`, and who is suspected, by the trace of the same number.

    `nodes` are the machines of the suspected `ranks`, the smallest set that the evidence names. `is_machine`: a process
    that is stopped, stuck in the kernel or cannot be read speaks against the machine itself; what else stands still may
    be the script's doing as well.
    """

    trace: Id
    sign: HangSign
    since: Moment
    still_s: float
    limit_s: float
    phase: str
    step: Step
    nodes: tuple[Name, ...] = ()
    ranks: tuple[Count, ...] = ()
    scope: Literal["machine", "group", "nobody"] = "nobody"
    confidence: float = 0.0
    is_machine: bool = False
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
