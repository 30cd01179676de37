"""The phases of a job, each with what is known only while it lasts.

    claiming ──nodes granted──▶ starting ──first step on every node──▶ running
        ▲                        │  ▲  │                                │  │
        └───────eviction─────────┘  └──┴───────restart in place─────────┘  │
        └──────────────────────────eviction────────────────────────────────┘
    starting, running ──a failure without a culprit──▶ checking ──eviction──▶ claiming
                                                       checking ──no suspect──▶ starting
    starting, running, checking ──checks found nothing──▶ replaying ──eviction──▶ claiming, or no suspect ──▶ starting
    starting, running, checking ──a service elsewhere failed the job──▶ waiting ──a pause──▶ starting
    starting, running ──every rank exited with 0──▶ ended (completed)
    all but ended ──stop, or given up──▶ stopping ──ranks gone on every node──▶ ended (stopped, failed)

A phase is entered by its `become_...` in `transitions.py`, which builds it whole.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.engines.checks.replay_groups import Phase as ReplayPhase
from holdfast.engines.checks.replay_groups import ReplayPlan
from holdfast.engines.checks.replay_outcome import GroupReplay
from holdfast.engines.checks.result_log import ResultLog
from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankReplay
from holdfast.growing import GrowingMap, GrowingSet
from holdfast.orders.replay import ReplaySettings
from holdfast_controller.plan.incident.incident import Failure

NO_NODES = GrowingSet()


class JobOutcome(StrEnum):
    """The way in which a job ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class Awaited(StrEnum):
    """The condition that a phase waits for; `deadline_passed` names it when it is late."""

    NODES = "nodes_granted"
    RANKS_STARTED = "ranks_started"
    FIRST_STEP = "first_step"
    CHECKS = "checks_done"
    REPLAY = "replay_done"
    PAUSE = "pause"
    RANKS_STOPPED = "ranks_stopped"


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that is waited for, and the time at which the wait ends."""

    awaited: Awaited
    since: datetime
    until: datetime

    def waited_s(self, now: datetime) -> float:
        """Return the seconds that it was waited for when it is over, though the clock was put back meanwhile."""
        return (max(now, self.until) - self.since).total_seconds()


class ChecksProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of stop-time checks."""

    suite: str
    began_at: datetime
    failure: Failure
    """The failure that led to the checks; the ladder continues from it."""
    results: ResultLog = ResultLog()
    over: GrowingSet = NO_NODES
    """Nodes from which no more results are expected."""
    died: dict[str, str] = {}
    """Nodes whose checks ended early, with the reason."""


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A dual-phase replay in progress, and the results of its present phase so far."""

    plan: ReplayPlan
    settings: ReplaySettings
    restore_at_most: int | None = None
    began_at: datetime
    failure: Failure
    phase: ReplayPhase = "horizontal"
    phase_began_at: datetime
    results: GrowingMap[dict[int, int]] = GrowingMap()
    """For each node and rank the index in `replays` of what it reported."""
    replays: tuple[RankReplay, ...] = ()
    """Distinct results: nearly all groups report the same ones."""
    over: GrowingSet = NO_NODES
    """Nodes that have reported all their results."""
    died: dict[str, str] = {}
    """Nodes on which a rank failed, with the reason."""
    earlier: tuple[GroupReplay, ...] = ()
    """Results of this phase when it ran before; empty the first time."""
    answers: tuple[tuple[str, ...], ...] = ()
    """Digests of the first phase's groups."""
    faulty: dict[ReplayPhase, tuple[int, ...]] = {}
    """Deviating groups of each phase that is over; of an undecided phase those that differ from each other."""
    undecided: frozenset[ReplayPhase] = frozenset()
    findings: tuple[str, ...] = ()


class OrderedWarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The warm-up in the orders of a generation, kept while those orders are in force."""

    limit_s: float
    """Time for the tests of each node."""
    newcomers: frozenset[str] | None = None
    """Nodes that are new to the job; None: all are."""


class WarmUpProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The warm-up of the nodes of one generation."""

    since: datetime
    until: datetime
    """When it is judged without the nodes that have not answered."""
    results: ResultLog = ResultLog()
    over: GrowingSet = NO_NODES
    """Nodes whose results are all here."""
    held: tuple[ProcessExited, ...] = ()
    """Ends of ranks that are judged once it is known whether their node is fit."""
    is_judged: bool = False


class Claiming(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="claiming"):
    """Nodes are missing and were requested."""

    claim: str | None = None
    """Id of the newest `nodes_requested`; None before the first."""
    is_suspended: bool = False
    """True once the job's other nodes were ordered to run nothing."""
    deadline: Deadline | None = None
    """Only a test of suspects and an elastic job stop waiting for nodes."""
    restart_reason: str = ""
    """Why it starts again, if not for a lack of nodes."""


class Starting(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="starting"):
    """Every node was ordered to start its ranks; not all of them have made a step."""

    started: GrowingSet = NO_NODES
    """Nodes whose ranks run."""
    stepped: GrowingSet = NO_NODES
    """Nodes whose ranks have made a step."""
    is_ahead: bool = False
    """True once the ranks of one node are further ahead than ranks without a step could still follow."""
    moving: GrowingSet = NO_NODES
    """Nodes whose ranks go on without making steps."""
    finished: GrowingSet = NO_NODES
    """Nodes whose ranks have all exited with 0."""
    ordered_at: datetime | None = None
    started_at: datetime | None = None
    """When the ranks of the last node were started."""
    deadline: Deadline | None
    """None once the first step is overdue and that was only reported."""
    warm_up: WarmUpProgress | None = None


class Running(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="running"):
    """Every node has made a step of this generation, or goes on without making any."""

    since: datetime
    step_seen_at: datetime
    """When the last step was recorded."""
    makes_no_steps: bool = False
    """The job goes on, and none of its ranks has made a step in this generation."""
    finished: GrowingSet = NO_NODES
    warm_up: WarmUpProgress | None = None
    """Set if the first step was faster than the warm-up."""


class Checking(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="checking"):
    """Stop-time checks run in place of training."""

    checks: ChecksProgress
    deadline: Deadline


class Replaying(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="replaying"):
    """A phase of a dual-phase replay runs in place of training."""

    replay: ReplayProgress
    deadline: Deadline


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="waiting"):
    """A service elsewhere failed the job, or nodes with its steps are away: no rank runs until the pause is over."""

    deadline: Deadline
    nodes: tuple[str, ...] = ()
    """The pause is over as soon as one of these is back."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome that a stopping job will have."""

    outcome: JobOutcome
    reason: str
    exit_code: int
    traceback: str = ""


class Stopping(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="stopping"):
    """Every node was ordered to stop its ranks, for good."""

    ending: Ending
    gone: GrowingSet = NO_NODES
    """Nodes that run none of the job's ranks any more."""
    deadline: Deadline


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="ended"):
    """The job is over."""

    outcome: JobOutcome
    exit_code: int
    at: datetime


JobPhase = Claiming | Starting | Running | Checking | Replaying | Waiting | Stopping | Ended

TRANSITIONS: dict[type[JobPhase], tuple[type[JobPhase], ...]] = {
    Claiming: (Claiming, Starting, Stopping),
    Starting: (Starting, Running, Checking, Replaying, Waiting, Claiming, Stopping, Ended),
    Running: (Starting, Checking, Replaying, Waiting, Claiming, Stopping, Ended),
    Checking: (Starting, Replaying, Waiting, Claiming, Stopping),
    Replaying: (Starting, Replaying, Claiming, Stopping),
    Waiting: (Starting, Claiming, Stopping),
    Stopping: (Ended,),
    Ended: (),
}

LIVE = (Starting, Running)
"""Phases in which the ranks of the present generation train, or are about to."""


def phase_name(phase: JobPhase) -> str:
    """Return the name that people and SQL know a phase by; an ended job goes by its outcome."""
    return str(phase.outcome if isinstance(phase, Ended) else phase.__struct_config__.tag)


def reported(phase: JobPhase) -> GrowingSet:
    """Return the nodes that have done what the phase waits for."""
    match phase:
        case Starting():
            return phase.stepped if phase.started_at else phase.started
        case Checking():
            return phase.checks.over
        case Replaying():
            return phase.replay.over
        case Stopping():
            return phase.gone
        case _:
            return NO_NODES
