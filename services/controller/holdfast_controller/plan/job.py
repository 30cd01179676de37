"""A job as the controller knows it. A generation is one life of all its ranks; each order carries its number."""

from __future__ import annotations

from collections.abc import Iterable, Set
from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_program import are_checks
from holdfast.engines.checks.result_log import ResultLog
from holdfast.events.parts.job import Grant, JobSpec, KeptFor, Purpose
from holdfast.growing import GrowingMap
from holdfast_controller.plan.code.code_state import CodeState
from holdfast_controller.plan.doubt.doubt_records import (
    Convict,
    Doubt,
    GroupGuess,
    LostNode,
    PastBadNumbers,
    Replacement,
    SharedFault,
)
from holdfast_controller.plan.elastic.free_nodes import FreeNodes
from holdfast_controller.plan.incident.incident import Alert, ClosedIncident, Failure, Incident, RankExit
from holdfast_controller.plan.phase import (
    TRANSITIONS,
    Checking,
    ChecksProgress,
    Claiming,
    Deadline,
    Ended,
    JobPhase,
    OrderedWarmUp,
    Replaying,
    ReplayProgress,
    Running,
    Starting,
    Waiting,
    WarmUpProgress,
    phase_name,
)
from holdfast_controller.plan.roll import Members, Names


class SuspectTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test of nodes that another job evicted together."""

    job: str
    """The job that evicted the nodes, in `incident`."""
    incident: str
    nodes: tuple[str, ...]
    evicted_at: datetime | None = None
    for_speed: bool = False
    """True if suspected of being slow. Such a test starts without witnesses if none is free; it then clears no node."""
    witnesses: int = 0
    """Maximum number of free nodes, which are no suspects, to test them with."""
    missing: tuple[str, ...] = ()
    """Suspects that the standby service cannot grant."""
    results: ResultLog = ResultLog()
    died: dict[str, str] = {}
    """Nodes that stopped reporting, with the reason."""

    @property
    def witnesses_needed(self) -> int:
        return 0 if self.for_speed else min(1, self.witnesses)

    def witnesses_among(self, nodes: Iterable[str]) -> tuple[str, ...]:
        return tuple(node for node in nodes if node not in self.nodes)

    def witnesses_missing(self, nodes: Iterable[str]) -> int:
        return max(0, self.witnesses - len(self.witnesses_among(nodes)))


class SlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that slows this generation down, or several of which one does."""

    generation: int
    node: str = ""
    """Empty if it is `one_of` several."""
    one_of: tuple[str, ...] = ()
    is_tested: bool = True
    """True if tests named it, False if only stacks or a hint did."""
    tests_until: datetime | None = None
    """Until then tests of a node that only a hint named may overrule the hint."""
    since: datetime
    lost_share: float = 0.5
    """Share of the training time that is lost."""
    is_told: bool = False
    """True once it was reported that the job is not restarted for it."""
    text: str
    event: str
    """Id of the event that named it."""

    @property
    def suspects(self) -> tuple[str, ...]:
        return self.one_of or (self.node,)


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """The pace of a generation that became slower and stays so."""

    generation: int
    since: datetime
    lost_share: float
    """Share of the training time that is lost."""
    text: str
    event: str
    """Id of the event that reported it."""
    is_refuted: bool = False
    """True once tests found every node as fast as the others."""
    hinted_at: datetime | None = None
    """When the first inspection came that hints were not compared after; None if they were after all."""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    spec: JobSpec
    phase: JobPhase
    submitted_at: datetime
    author: str = ""
    """The user who submitted it; "": unknown."""
    members: tuple[Grant | None, ...]
    """The node of each node rank; None where one is missing."""
    left: dict[str, int] = {}
    """The last generation of each node that has left the job lately: it may still publish about that one."""
    nodes_before: int = 0
    """Number of nodes of the present generation, or of the last one while nodes are claimed."""
    generation: int = 0
    """Number of the present generation; it only grows."""
    generation_used: int = 0
    """The newest generation that may have been ordered, if this is older: the database was restored from a backup."""
    claimed_at: datetime | None = None
    """Time of the newest `nodes_requested`."""
    lost_before_granted: dict[str, int] = {}
    """Epochs at which nodes were lost before their grant arrived: a late grant of such an epoch is ignored."""
    departed: dict[str, str] = {}
    """Instances of agents that were shut down since the last start, by node; also of nodes that may be granted yet."""
    returned: dict[str, datetime] = {}
    """When a node reported, by its own clock, that the bus had gone back: departures of before are over."""
    ordered_by: str | None = None
    """Id of the event that the present orders follow from."""
    step: int = -1
    step_s: float | None = None
    """Median duration of a step; None until measured."""
    has_stepped: bool = False
    has_run: bool = False
    """True once every node has made a step."""
    first_step_s: float | None = None
    """Longest time from running ranks to the first step, over all generations; None before the first."""
    start_s: float | None = None
    """Time that the job took to train for the first time, from the order to the first step of all nodes."""
    restart_s: float | None = None
    """Time that the job's last restart took, from the order to the first step of all nodes; None before the first."""
    origin_step: int | None = None
    """The first step of the job's first generation."""
    has_resumed: bool = False
    """True if the job's last restart went on from a later step than the first."""
    is_resized: bool = False
    """True if the present generation has another number of nodes than the one before."""
    has_resized: bool = False
    """True if the job went on when that was so last."""
    redone_steps: int = 0
    """Steps that the last restart made once more."""
    is_numbered: bool = True
    """False if step numbers start again in every generation."""
    is_start_unknown: bool = False
    """True if nothing shows from which step the present generation went on."""
    number_of_first: int | None = None
    """The number that the script gives to the first step of the present generation, where steps are counted from 0."""
    settled: Incident | None = None
    """The last incident that was closed because the job trained long enough, where steps are not numbered."""
    restorable_step: int | None = None
    has_checkpoints: bool = False
    """True once any step was restorable."""
    first_kept_step: int | None = None
    """First step that rank 0 kept in memory; None: it keeps none."""
    kept_every: int = 1
    """Distance of the steps that ranks keep in memory."""
    kept_for: KeptFor = "same_ranks"
    """Jobs that can restore the steps which it keeps in memory."""
    refuses_scratch: bool = False
    """True if the job had made checkpoints when this generation started."""
    restore_at_most: int | None = None
    """The newest step that the present generation was allowed to restore; None: any."""
    given_limit: int | None = None
    """Restore limit that the user gave at submission."""
    next_restore_at_most: int | None = None
    """Restore limit of the next generation, if it differs."""
    is_past_limit: bool = False
    """True once this generation has trained past `restore_at_most`, which then no longer holds."""
    alerts: GrowingMap[tuple[Alert, ...]] = GrowingMap()
    """Alerts of the job's nodes that may still matter."""
    alerts_generation: int = 0
    """Generation in which alerts of nodes that had left were last forgotten."""
    exits: tuple[RankExit, ...] = ()
    """Ends of ranks of the newest generation that failed, while its incident is open."""
    ordered_warm_up: OrderedWarmUp | None = None
    newcomers: frozenset[str] = frozenset()
    """Nodes that joined the job since it last ran on all of its nodes."""
    unfit: dict[str, Failure] = {}
    """Nodes of this generation that a warm-up found unfit and nothing could replace."""
    doubts: dict[str, Doubt] = {}
    """Nodes that alerts are sure about, and that are still part of the job."""
    replacement: Replacement | None = None
    """Nodes that leave the job as soon as others are granted."""
    spares: tuple[Grant, ...] = ()
    """Nodes that were granted before those leave that they replace; empty between decisions."""
    free_nodes: FreeNodes | None = None
    """Nodes that came free while the job runs on fewer than it may have."""
    shared: dict[str, SharedFault] = {}
    """Faults that nodes share and that last, by what alerts are compared by."""
    convicted: tuple[Convict, ...] = ()
    """Nodes that were evicted for their alerts lately."""
    lost: tuple[LostNode, ...] = ()
    """Nodes that were lost lately."""
    absent: dict[str, int] = {}
    """Nodes that have left since the job last ran, and may hold its steps: the generation in which each came back."""
    evictions: tuple[datetime, ...] = ()
    """Times of the judgements that the circuit breaker counts: evictions by evidence, a group at once is one."""
    guesses: tuple[GroupGuess, ...] = ()
    """Groups that were evicted lately because one of their nodes blocked the others."""
    past_bad_numbers: tuple[PastBadNumbers, ...] = ()
    """Bad numbers that nothing has explained, of the newest incidents, the oldest first."""
    breaker_open_since: datetime | None = None
    distrusted_since: datetime | None = None
    """When one of its ranks was found to print about one node after another that it is broken."""
    suspect_test: SuspectTest | None = None
    slow: SlowNode | None = None
    """Set while a node that slows the job down is not replaced yet."""
    slowdown: Slowdown | None = None
    """Set while this generation is slow, whether a node is named for it or not."""
    incident: Incident | None = None
    closed: ClosedIncident | None = None
    """The last incident, if ends of ranks led to it, and as long as it may be diagnosed again."""
    settled_restarts: int = 0
    """Restarts for failures in incidents that are closed."""
    code: CodeState = CodeState()

    def __post_init__(self) -> None:
        if type(self.members) is not Members:
            msgspec.structs.force_setattr(self, "members", Members(self.members))

    @property
    def job(self) -> str:
        return self.spec.name

    @property
    def next_generation(self) -> int:
        """The number of the next generation: above all that nodes and checkpoints may remember."""
        return max(self.generation, self.generation_used) + 1

    def counting_from(self, generation: int) -> JobState:
        """Return this job with `next_generation` above `generation`."""
        if generation <= self.generation:
            return self
        return self.update(generation_used=max(self.generation_used, generation))

    @property
    def phase_name(self) -> str:
        return phase_name(self.phase)

    @property
    def is_over(self) -> bool:
        return isinstance(self.phase, Ended)

    @property
    def waits_for_time(self) -> bool:
        """True if something may follow from the passing of time alone."""
        return bool(
            self.deadline
            or self.code.pending
            or self.slow
            or self.doubts
            or self.shared
            or self.free_nodes
            or self.replacement_due_at
            or self.hints_due_at
            or self.warm_up_due_at
        )

    @property
    def replacement_due_at(self) -> datetime | None:
        """When a job that hangs stops waiting for nodes in the place of a group."""
        return self.replacement.until if self.replacement else None

    @property
    def hints_due_at(self) -> datetime | None:
        """When hints about a slow job are to be compared; None: there is no new one."""
        return self.slowdown.hinted_at if self.slowdown else None

    @property
    def warm_up(self) -> WarmUpProgress | None:
        return self.phase.warm_up if isinstance(self.phase, Starting | Running) else None

    @property
    def warm_up_due_at(self) -> datetime | None:
        """When the warm-up is judged without the nodes that have not answered; None: there is none, or it was."""
        return self.warm_up.until if self.warm_up and not self.warm_up.is_judged else None

    @property
    def purpose(self) -> Purpose:
        return "checks" if are_checks(self.spec) else "train"

    @property
    def deadline(self) -> Deadline | None:
        """The time by which the present phase expects something; None if it waits for nothing."""
        return None if isinstance(self.phase, Running | Ended) else self.phase.deadline

    @property
    def checks(self) -> ChecksProgress | None:
        return self.phase.checks if isinstance(self.phase, Checking) else None

    @property
    def replay(self) -> ReplayProgress | None:
        return self.phase.replay if isinstance(self.phase, Replaying) else None

    @property
    def claim(self) -> str | None:
        return self.phase.claim if isinstance(self.phase, Claiming) else None

    @property
    def is_suspended(self) -> bool:
        """True if the job's nodes were ordered to run nothing, and the job goes on later."""
        return isinstance(self.phase, Waiting) or (isinstance(self.phase, Claiming) and self.phase.is_suspended)

    @property
    def _roll(self) -> Members:
        assert isinstance(self.members, Members)
        return self.members

    @property
    def nodes(self) -> Names:
        """Nodes that the job holds, by node rank."""
        return self._roll.nodes

    @property
    def vacancies(self) -> int:
        return self._roll.vacancies

    def nodes_in(self, rack: str) -> int:
        """Return the number of nodes that the job holds in a rack."""
        return self._roll.by_rack[rack]

    @property
    def witnesses_missing(self) -> int:
        return self.suspect_test.witnesses_missing(self.nodes) if self.suspect_test else 0

    @property
    def restarts_left(self) -> int | None:
        """Restarts for failures that the job's bound leaves to its incident; None: it has no bound."""
        bound = self.spec.launch.max_restarts
        return None if bound is None else max(0, bound - self.settled_restarts)

    @property
    def has_ended_ranks(self) -> bool:
        """A rank of the present generation has failed, so that it will not go on, however far its other ranks were."""
        return any(one.generation == self.generation for one in self.exits)

    @property
    def trained_generation(self) -> int:
        """The newest generation that trained: suspensions, checks and replays use up numbers as well."""
        if self.replay is not None:
            return self.replay.failure.generation
        generation = self.generation - self.is_suspended
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
        """Return the grant by which the job holds this node, None if it does not."""
        return self._roll.by_node.get(node or "")

    def are_all(self, nodes: Set[str]) -> bool:
        """Return True if every node that the job holds is among these."""
        # Most of the time they are too few, and are not looked at.
        return len(nodes) >= len(self.nodes) and all(node in nodes for node in self.nodes)

    def enter(self, phase: JobPhase, **changes: object) -> JobState:
        """Return the job in its next phase, for `transitions.py`; raise ImpossibleTransition if it is not allowed."""
        if type(phase) not in TRANSITIONS[type(self.phase)]:
            raise ImpossibleTransition(f"job {self.job}: {self.phase_name} cannot become {phase_name(phase)}")
        return self.update(phase=phase, **changes)

    def within_phase(self, **changes: object) -> JobState:
        return self.update(phase=msgspec.structs.replace(self.phase, **changes))

    def update(self, **changes: object) -> JobState:
        return msgspec.structs.replace(self, **changes)


class ImpossibleTransition(AssertionError):
    """A transition that `TRANSITIONS` does not have: a defect of the controller, never of its input."""
