"""A job as the controller knows it: its phases, what may follow what, and the incident it is in.

    claiming ──nodes granted──▶ starting ──first step on every node──▶ running
        ▲                        │  ▲  │                                │  │
        └───────eviction─────────┘  └──┴───────restart in place─────────┘  │
        └──────────────────────────eviction────────────────────────────────┘
    starting, running ──a failure without a culprit──▶ checking ──eviction──▶ claiming
                                                        checking ──nobody to blame──▶ starting
    starting, running, checking ──checks were no help──▶ replaying ──eviction──▶ claiming, or nobody ──▶ starting
    starting, running, checking ──a service elsewhere failed the job──▶ waiting ──a pause──▶ starting
    starting, running ──every rank ended with 0──▶ completed
    any of these ──stop, or given up──▶ stopping ──ranks gone on every node──▶ stopped | failed

A generation is one life of all ranks of a job. Its number only grows; each order to a node carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.engines.checks.replay_groups import Phase, ReplayPlan
from holdfast.engines.checks.replay_outcome import GroupReplay
from holdfast.events import DiagnosticResult
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import RankReplay
from holdfast.orders.replay import ReplaySettings
from holdfast_controller.plan.code.code_state import CodeState
from holdfast_controller.plan.incident.incident import Alert, Failure, Incident


class JobPhase(StrEnum):
    """Where a job stands."""

    CLAIMING = "claiming"
    STARTING = "starting"
    RUNNING = "running"
    CHECKING = "checking"
    REPLAYING = "replaying"
    WAITING = "waiting"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


_BREAKS_OFF = frozenset({JobPhase.CHECKING, JobPhase.REPLAYING, JobPhase.WAITING, JobPhase.CLAIMING, JobPhase.STOPPING})
"""What may follow when something goes wrong with ranks that train."""

TRANSITIONS: dict[JobPhase, frozenset[JobPhase]] = {
    JobPhase.CLAIMING: frozenset({JobPhase.CLAIMING, JobPhase.STARTING, JobPhase.STOPPING}),
    JobPhase.STARTING: _BREAKS_OFF | {JobPhase.STARTING, JobPhase.RUNNING, JobPhase.COMPLETED},
    JobPhase.RUNNING: _BREAKS_OFF | {JobPhase.STARTING, JobPhase.COMPLETED},
    JobPhase.CHECKING: (_BREAKS_OFF - {JobPhase.CHECKING}) | {JobPhase.STARTING},
    JobPhase.REPLAYING: frozenset({JobPhase.STARTING, JobPhase.REPLAYING, JobPhase.CLAIMING, JobPhase.STOPPING}),
    JobPhase.WAITING: frozenset({JobPhase.STARTING, JobPhase.CLAIMING, JobPhase.STOPPING}),
    JobPhase.STOPPING: frozenset({JobPhase.STOPPED, JobPhase.FAILED}),
    JobPhase.COMPLETED: frozenset(),
    JobPhase.FAILED: frozenset(),
    JobPhase.STOPPED: frozenset(),
}

LIVE = frozenset({JobPhase.STARTING, JobPhase.RUNNING})
"""Phases in which the ranks of the present generation train, or begin to."""

OVER = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.STOPPED})
"""Phases that a job does not leave."""


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


class Retest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run of checks: it tests nodes that `job` evicted together in `incident`. `missing` could not be had.

    `for_speed`: what they were suspected of is to be slow. Up to `witnesses` free nodes of the pool are tested with
    them, which nobody suspects. Tests for speed begin without these if they must, and then clear nobody.
    """

    job: str
    incident: str
    nodes: tuple[str, ...]
    for_speed: bool = False
    witnesses: int = 0
    missing: tuple[str, ...] = ()
    results: tuple[DiagnosticResult, ...] = ()
    died: dict[str, str] = {}

    @property
    def witnesses_needed(self) -> int:
        """Without so many the tests do not begin."""
        return 0 if self.for_speed else self.witnesses

    def witnesses_among(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those of these nodes that nobody suspects."""
        return tuple(node for node in nodes if node not in self.nodes)

    def witnesses_missing(self, nodes: Iterable[str]) -> int:
        """So many more may come to these nodes."""
        return max(0, self.witnesses - len(self.witnesses_among(nodes)))


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


class SlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that makes this generation slow, by `event`; at `due_at` it will have cost as much as a restart.

    Without a `node` it is `one_of` several, and nobody can tell which. `is_tested`: tests say so, not only stacks.
    """

    generation: int
    node: str = ""
    one_of: tuple[str, ...] = ()
    is_tested: bool = True
    since: datetime
    due_at: datetime
    text: str
    event: str

    @property
    def suspects(self) -> tuple[str, ...]:
        """Who has to go."""
        return self.one_of or (self.node,)


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
    `breaker_open_since`. `slow` is a machine that makes the job slow, and is not replaced yet.
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
    retest: Retest | None = None
    slow: SlowNode | None = None
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
        generation = self.generation - self.suspended
        while self.incident is not None and generation in self.incident.untrained:
            generation -= 1
        return generation

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
