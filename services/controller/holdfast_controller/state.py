"""A job as the controller knows it: its phases, what may follow what, and the incident it is in.

    claiming ──nodes granted──▶ starting ──first step on every node──▶ running
        ▲                        │  ▲  │                                │  │
        └───────eviction─────────┘  └──┴───────restart in place─────────┘  │
        └──────────────────────────eviction────────────────────────────────┘
    starting, running ──a failure without a culprit──▶ checking ──eviction──▶ claiming
                                                        checking ──nobody to blame──▶ starting
    starting, running, checking ──checks were no help──▶ replaying ──eviction──▶ claiming, or nobody ──▶ starting
    starting, running ──every rank ended with 0──▶ completed
    any of these ──stop, or given up──▶ stopping ──ranks gone on every node──▶ stopped | failed

A generation is one life of all ranks of a job. Its number only grows; each order to a node carries it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.diagnosis.replay_groups import Phase, ReplayPlan
from holdfast.diagnosis.replay_outcome import GroupReplay
from holdfast.event_parts import Grant, JobSpec, RankReplay
from holdfast.events import DiagnosticResult
from holdfast.replay_settings import ReplaySettings
from holdfast.symptoms import Root
from holdfast_controller.code_state import CodeState


class JobPhase(StrEnum):
    """Where a job stands."""

    CLAIMING = "claiming"
    STARTING = "starting"
    RUNNING = "running"
    CHECKING = "checking"
    REPLAYING = "replaying"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


TRANSITIONS: dict[JobPhase, frozenset[JobPhase]] = {
    JobPhase.CLAIMING: frozenset({JobPhase.CLAIMING, JobPhase.STARTING, JobPhase.STOPPING}),
    JobPhase.STARTING: frozenset(
        {
            JobPhase.STARTING,
            JobPhase.RUNNING,
            JobPhase.CHECKING,
            JobPhase.REPLAYING,
            JobPhase.CLAIMING,
            JobPhase.STOPPING,
            JobPhase.COMPLETED,
        }
    ),
    JobPhase.RUNNING: frozenset(
        {
            JobPhase.STARTING,
            JobPhase.CHECKING,
            JobPhase.REPLAYING,
            JobPhase.CLAIMING,
            JobPhase.STOPPING,
            JobPhase.COMPLETED,
        }
    ),
    JobPhase.CHECKING: frozenset({JobPhase.STARTING, JobPhase.REPLAYING, JobPhase.CLAIMING, JobPhase.STOPPING}),
    JobPhase.REPLAYING: frozenset({JobPhase.STARTING, JobPhase.REPLAYING, JobPhase.CLAIMING, JobPhase.STOPPING}),
    JobPhase.STOPPING: frozenset({JobPhase.STOPPED, JobPhase.FAILED}),
    JobPhase.COMPLETED: frozenset(),
    JobPhase.FAILED: frozenset(),
    JobPhase.STOPPED: frozenset(),
}

LIVE = frozenset({JobPhase.STARTING, JobPhase.RUNNING})
"""Phases in which the ranks of the present generation train, or begin to."""

OVER = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.STOPPED})
"""Phases that a job does not leave."""


class Symptom(StrEnum):
    """What a failure looks like from outside; issue by issue this list grows towards ByteRobust's Table 1."""

    KILLED = "killed_by_signal"
    USER_EXCEPTION = "user_exception"
    EXIT_CODE = "exit_code"
    INFRASTRUCTURE = "infrastructure_error"
    PEER_LOST = "peer_lost"
    RANKS_VANISHED = "ranks_vanished"
    NODE_LOST = "node_lost"
    NODE_DEPARTED = "node_departed"
    START_TIMEOUT = "start_timeout"
    NO_FIRST_STEP = "no_first_step"
    NAN = "nan"
    JUMP = "jump"
    UNFIT = "node_unfit"


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended: what is needed to see that it comes again, and to tell people."""

    generation: int
    signature: str
    step: int
    on_first_step: bool
    traceback: str
    exit_code: int

    @property
    def trait(self) -> str:
        """What is the same wherever the same failure comes again, on any node."""
        return f"{self.signature} at step {self.step}"


class Rung(StrEnum):
    """What to do about a failure, from mild to severe."""

    REATTEMPT = "reattempt"
    ROLLBACK = "rollback"
    REPLACE = "replace"
    CHECKS = "stop_time_checks"
    REPLAY = "replay"
    EVICT = "evict"
    STOP = "stop"


class Spoiled(msgspec.Struct, frozen=True, kw_only=True):
    """Where numbers of a generation went bad, and the newest step that was known to be clean then; None: none was."""

    generation: int
    step: int
    certified: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong in one generation of a job. `evidence` are the ids of the events that tell of it.

    `named` is the symptom in the terms of `holdfast.symptoms`, where more is known than `symptom` says; `root` where
    the cause lies, as far as that can be told.
    """

    symptom: Symptom
    generation: int
    step: int
    text: str
    named: str = ""
    root: Root = Root.UNKNOWN
    evidence: tuple[str, ...] = ()
    node: str | None = None
    rank: int | None = None
    error: RankError | None = None
    spoiled: Spoiled | None = None

    @property
    def shown_as(self) -> str:
        """The symptom by its most telling name."""
        return self.named or self.symptom


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A rung that was taken within an incident, on what evidence, and which would have come `next`."""

    at: datetime
    generation: int
    rung: Rung
    reason: str
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    next: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a node raised beside training. `stands`: it has not been cleared."""

    at: datetime
    check: str
    device: str
    kind: str = ""
    symptom: str
    confidence: str
    text: str
    event: str
    stands: bool = True


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes were seen to fail in one and the same way, by generation; who was part of the job each time."""

    by: dict[int, frozenset[str]]
    each_time: frozenset[str]


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was held at `epoch` and evicted for failures of this trait."""

    epoch: int
    trait: str


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Stop-time checks under way: what failed, so that the ladder can go on behind them, and what was found so far.

    `over` are the nodes that have no more to say, `died` those whose checks broke off, and how.
    """

    suite: str
    began_at: datetime
    failure: Failure
    results: tuple[DiagnosticResult, ...] = ()
    over: frozenset[str] = frozenset()
    died: dict[str, str] = {}


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A dual-phase replay under way, and what the phase that runs has brought so far.

    `results` says for each node and rank which of `replays` it has brought: nearly all groups bring the same ones.
    `over` are the nodes that have brought all of theirs, `died` those where a rank ended badly, and how. `earlier` is
    what this phase brought when it was run before. `faulty` has the groups that deviated, for each phase that is over;
    of a phase in `undecided` they are those that differ from each other. `answers` are those of the first phase's
    groups.
    """

    plan: ReplayPlan
    settings: ReplaySettings
    restore_at_most: int | None = None
    began_at: datetime
    failure: Failure
    phase: Phase = "horizontal"
    phase_began_at: datetime
    results: dict[str, dict[int, int]] = {}
    replays: tuple[RankReplay, ...] = ()
    over: frozenset[str] = frozenset()
    died: dict[str, str] = {}
    earlier: tuple[GroupReplay, ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()
    faulty: dict[Phase, tuple[int, ...]] = {}
    undecided: frozenset[Phase] = frozenset()
    findings: tuple[str, ...] = ()


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident. It ends when the job has gone past the step at which it failed, or with the job.

    One of bad numbers (`spoiled`: the first ones of each generation) ends only when that step is certified.

    `blamed` counts, for each node, the generations of this incident that failed there first hand; `shown` has the
    traits of these failures, and `evicted` the nodes that had to go for them. `checked` are the nodes whose stop-time
    checks in this incident found nothing, `replayed` those that a replay has compared; `untrained` are the generations
    of both. `taken` are the rungs so far; the last of very many.
    """

    id: str
    opened_at: datetime
    symptom: Symptom
    failed_step: int
    attempts: int = 0
    blamed: dict[str, int] = {}
    blamed_generation: dict[str, int] = {}
    shown: dict[str, Shown] = {}
    evicted: dict[str, Evicted] = {}
    user_error: RankError | None = None
    spoiled: tuple[Spoiled, ...] = ()
    checked: frozenset[str] = frozenset()
    replayed: frozenset[str] = frozenset()
    untrained: frozenset[int] = frozenset()
    taken: tuple[Taken, ...] = ()
    named: str = ""
    summary: str = ""

    @property
    def shown_as(self) -> str:
        """The symptom by its most telling name."""
        return self.named or self.symptom


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ends, decided before its ranks are gone."""

    phase: JobPhase
    reason: str
    exit_code: int
    traceback: str = ""


class Await(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must happen by a time."""

    what: str
    since: datetime
    until: datetime


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the controller knows of a job. `members` has one place for each node rank; None is a vacancy.

    `running_since` is when every node of this generation had made its first step. `is_numbered`: the numbers of steps
    tell how far the job is; where they do not, `settled` is the last incident that was over for having trained again.
    `step_s` is the median duration of a step, `first_step_s` the longest that a generation took from running ranks
    to its first step; both are None until known. `has_checkpoints`: a step of it was restorable
    once. `restore_at_most` is what the present generation was told; the next is
    told that or `next_restore_at_most`, until the job `is_past_limit`. `lost_before_granted` has the epochs at which
    nodes were lost that the job was not known to hold: a late grant must not bring them in. `alerts` are those of the
    job's nodes that may still matter, `evictions` the times of those that the circuit breaker counts; it is open since
    `breaker_open_since`.
    """

    spec: JobSpec
    phase: JobPhase
    submitted_at: datetime
    members: tuple[Grant | None, ...]
    generation: int = 0
    claim: str | None = None
    claimed_at: datetime | None = None
    lost_before_granted: dict[str, int] = {}
    suspended: bool = False
    ordered_by: str | None = None
    started: frozenset[str] = frozenset()
    stepped: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    step: int = -1
    step_seen_at: datetime | None = None
    step_s: float | None = None
    has_stepped: bool = False
    started_at: datetime | None = None
    running_since: datetime | None = None
    is_numbered: bool = True
    settled: Incident | None = None
    first_step_s: float | None = None
    restorable_step: int | None = None
    has_checkpoints: bool = False
    restore_at_most: int | None = None
    next_restore_at_most: int | None = None
    is_past_limit: bool = False
    alerts: dict[str, tuple[Alert, ...]] = {}
    evictions: tuple[datetime, ...] = ()
    breaker_open_since: datetime | None = None
    checks: Checks | None = None
    replay: Replay | None = None
    awaiting: Await | None = None
    incident: Incident | None = None
    code: CodeState = CodeState()
    ending: Ending | None = None
    ended_at: datetime | None = None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the job holds, by node rank."""
        return tuple(member.node for member in self.members if member)

    @property
    def trained_generation(self) -> int:
        """The newest generation that trained: waiting for nodes, checks and replays take numbers of their own."""
        if self.replay is not None:
            return self.replay.failure.generation
        return self.generation - (self.suspended or self.phase is JobPhase.CHECKING)

    @property
    def next_limit(self) -> int | None:
        """The newest step that the next generation may restore; None: any."""
        if self.is_past_limit:
            return None
        return self.restore_at_most if self.next_restore_at_most is None else self.next_restore_at_most

    def member(self, node: str | None) -> Grant | None:
        """The grant by which the job holds this node, if it does."""
        return next((member for member in self.members if member and member.node == node), None)

    @property
    def vacancies(self) -> int:
        """How many nodes are missing."""
        return sum(member is None for member in self.members)

    def become(self, phase: JobPhase, **changes: object) -> JobState:
        """The job in its next phase.

        Raises:
            ImpossibleTransition: the table does not have it; a defect of the controller, never of its input.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise ImpossibleTransition(f"job {self.job}: {self.phase} cannot become {phase}")
        return self.update(phase=phase, **changes)

    def update(self, **changes: object) -> JobState:
        """The job with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class ImpossibleTransition(AssertionError):
    """A transition that the table does not have."""
