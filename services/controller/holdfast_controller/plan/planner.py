"""The controller's decisions: what follows for a job from an event, a request or the passing of time.

Everything here is pure: the same state, input and time give the same decision. Silence is never taken for good health,
nor for recovery: a job recovers only when its ranks report progress.

A handler changes a draft of the decision. The kind of a job selects its handlers: it trains, it is a run of checks that
a person asked for, or it is a test of suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.engines.checks.checks_program import are_checks
from holdfast.engines.record.node_records import NodeRecords
from holdfast.events import (
    AnyEvent,
    BadNumber,
    BusWentBack,
    CheckpointRestored,
    DeadlinePassed,
    DiagnosticResult,
    Event,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    FirstStep,
    HangFound,
    Inspection,
    KeepingSpaced,
    MfuDeclined,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodeStateChanged,
    OrderRefused,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    ReplayResult,
    StepRestorable,
    StepsCertified,
    StepsKept,
    StepsNumbered,
    StepTimeMeasured,
    SuspectsTested,
    TelemetryAnomaly,
)
from holdfast.ids import derived_id, named_id
from holdfast.requests import AnyRequest, Request, ResetBreaker, RollbackJob, StopJob, SubmitJob, UpdateJob
from holdfast.settings.retention import RetentionPolicy
from holdfast_controller.plan import generation, members, requests
from holdfast_controller.plan.checks import checks, checks_run, replays, suspect_test, warm_up
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.doubt import doubts, group_guesses, replacement, shared_faults
from holdfast_controller.plan.draft import NOWHERE, JobDecision, JobDraft, Rules
from holdfast_controller.plan.elastic import growth
from holdfast_controller.plan.incident import hangs, inspection, rank_exit, slow
from holdfast_controller.plan.incident.bad_numbers import bad_numbers
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss import absent_nodes, forgotten_orders, lost_steps
from holdfast_controller.plan.own_nodes import is_foreign
from holdfast_controller.plan.phase import (
    LIVE,
    Checking,
    Claiming,
    Deadline,
    JobPhase,
    Replaying,
    Starting,
    Stopping,
    Waiting,
    reported,
)

Handler = Callable[[JobDraft, Any], None]


def _rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    state = draft.state
    if event.generation == state.generation and isinstance(state.phase, Checking):
        checks.rank_exited(draft, event)
    elif event.generation == state.generation and isinstance(state.phase, Replaying):
        replays.rank_exited(draft, event)
    elif not warm_up.takes(draft, event):
        rank_exit.rank_exited(draft, event)


def _tested(draft: JobDraft, event: DiagnosticResult) -> None:
    if isinstance(draft.state.phase, LIVE):
        warm_up.result(draft, event)
    else:
        checks.diagnostic_result(draft, event)


def _nodes_answered(draft: JobDraft, event: NodesGranted | NodesAwaited) -> None:
    """Handle an answer of the standby service. Ends of ranks may have waited for it."""
    if isinstance(event, NodesGranted):
        members.nodes_granted(draft, event)
    else:
        members.nodes_awaited(draft, event)
    warm_up.judge_held(draft)


def _nothing(_: JobDraft, __: JobState) -> None:
    """Leave the decision as it is."""


def _inspected(draft: JobDraft, event: Inspection) -> None:
    inspection.inspected(draft, event)
    slow.inspected(draft)


def _node_changed(draft: JobDraft, event: NodeStateChanged) -> None:
    growth.node_changed(draft, event)
    absent_nodes.node_changed(draft, event)


class JobKind(NamedTuple):
    """The handlers for one kind of job: training, a run of checks, a test of suspects."""

    events: Mapping[type[Event], Handler]
    deadlines: Mapping[type[JobPhase], Callable[[JobDraft, DeadlinePassed], None]]
    """Handlers of a passed deadline, by phase."""
    conclude: Callable[[JobDraft, JobState], None] = _nothing
    """Called last, with the state before the decision."""


TRAINING = JobKind(
    events={
        NodesGranted: _nodes_answered,
        NodesAwaited: _nodes_answered,
        RanksStarted: generation.ranks_started,
        FirstStep: generation.first_step,
        StepsNumbered: lost_steps.steps_numbered,
        Progress: generation.progress,
        RanksFinished: generation.ranks_finished,
        RanksStopped: generation.ranks_stopped,
        ProcessExited: _rank_exited,
        NodeLost: members.node_gone,
        NodeDeparted: members.node_gone,
        NodeStateChanged: _node_changed,
        StepsKept: lost_steps.steps_kept,
        KeepingSpaced: lost_steps.keeping_spaced,
        CheckpointRestored: lost_steps.checkpoint_restored,
        StepTimeMeasured: generation.step_time_measured,
        StepRestorable: generation.step_restorable,
        BadNumber: bad_numbers.bad_number,
        StepsCertified: bad_numbers.steps_certified,
        OrderRefused: forgotten_orders.order_refused,
        BusWentBack: forgotten_orders.bus_went_back,
        Inspection: _inspected,
        TelemetryAnomaly: inspection.telemetry_differs,
        DiagnosticResult: _tested,
        ReplayResult: replays.replay_result,
        HangFound: hangs.hang_found,
        SuspectsTested: group_guesses.suspects_tested,
        FailSlowOnset: slow.slowed_down,
        MfuDeclined: slow.slowed_down,
        FailSlowLocated: slow.fail_slow_located,
        FailSlowRelieved: slow.fail_slow_relieved,
    },
    deadlines={
        Claiming: members.unanswered,
        Starting: generation.start_overdue,
        Checking: checks.overdue,
        Replaying: replays.overdue,
        Stopping: generation.stop_overdue,
    },
)

CHECKS_RUN = JobKind(
    events={
        NodesGranted: members.nodes_granted,
        NodesAwaited: members.nodes_awaited,
        RanksStarted: generation.ranks_started,
        RanksFinished: generation.ranks_finished,
        RanksStopped: generation.ranks_stopped,
        NodeLost: checks_run.node_gone,
        NodeDeparted: checks_run.node_gone,
        OrderRefused: forgotten_orders.order_refused,
        BusWentBack: forgotten_orders.bus_went_back,
    },
    deadlines={Starting: checks_run.overdue, Stopping: generation.stop_overdue},
)

SUSPECT_TEST = JobKind(
    events={
        **CHECKS_RUN.events,
        NodesGranted: suspect_test.nodes_granted,
        NodesAwaited: suspect_test.nodes_awaited,
        RanksFinished: suspect_test.ranks_finished,
        ProcessExited: suspect_test.rank_exited,
        NodeLost: suspect_test.node_gone,
        NodeDeparted: suspect_test.node_gone,
        DiagnosticResult: suspect_test.diagnostic_result,
    },
    deadlines={**CHECKS_RUN.deadlines, Claiming: suspect_test.unclaimed},
    conclude=suspect_test.conclude_if_over,
)

SUBSCRIPTIONS: tuple[type[Event], ...] = tuple({**TRAINING.events, **CHECKS_RUN.events, **SUSPECT_TEST.events})

REQUESTS: dict[type[Request], Callable[[JobDraft, Any], str]] = {
    StopJob: requests.stop,
    UpdateJob: updates.update,
    RollbackJob: updates.rollback,
    ResetBreaker: requests.reset_breaker,
}
"""Handlers of requests about a job that exists; each returns why it refuses, or an empty string."""


def _kind(state: JobState) -> JobKind:
    if state.suspect_test:
        return SUSPECT_TEST
    return CHECKS_RUN if are_checks(state.spec) else TRAINING


def _is_over(state: JobState, deadline: Deadline, now: datetime, hearing_since: datetime) -> bool:
    """Return True if a pause is over, or an event has not come for so long while the controller was connected."""
    # A deadline from before the clock was put back counts from then on.
    began = deadline.since if deadline.since <= now else hearing_since
    since = began if isinstance(state.phase, Waiting) else max(began, hearing_since)
    return now - since >= deadline.until - deadline.since


def _by_time(state: JobState, now: datetime, what: str) -> str:
    """Return an id for what a decision by the passing of time makes. Its cause is an event of long before."""
    return named_id(now, state.job, what, state.generation)


class Planner:
    """The decisions under one set of rules; it holds no state."""

    def __init__(self, rules: Rules, retention: RetentionPolicy | None = None) -> None:
        self.rules = rules
        self.retention = retention or RetentionPolicy()

    def knowing(self, records: NodeRecords, elsewhere: Mapping[str, datetime] = NOWHERE) -> Planner:
        """Return the planner with these records of nodes, and reports of other jobs' nodes."""
        return Planner(msgspec.structs.replace(self.rules, records=records, elsewhere=elsewhere), self.retention)

    def request(
        self, state: JobState | None, request: AnyRequest, now: datetime, forgotten: datetime | None = None
    ) -> JobDecision:
        """Decide a request. `forgotten`: when a job of this name ended, if its state was deleted since."""
        if isinstance(request, SubmitJob):
            if forgotten:
                why = requests.refused(None, request.spec.name, forgotten)
                return JobDecision(state=None, refusal=f"{why}; choose another --name")
            return requests.submit(state, request, now, self.rules)
        assert isinstance(request, StopJob | UpdateJob | RollbackJob | ResetBreaker)
        if (why := requests.refused(state, request.job, forgotten)) or state is None:
            return JobDecision(state=state, refusal=why)
        draft = JobDraft(state, request.id, now, self.rules)
        why = REQUESTS[type(request)](draft, request)
        return JobDecision(state=state, refusal=why) if why else draft.decision()

    def event(self, state: JobState, event: AnyEvent, now: datetime) -> JobDecision:
        if is_foreign(state, event):
            return JobDecision(state=state)
        # Several jobs decide about what happens to nodes that are not theirs.
        is_own = event.job is not None or event.node in state.nodes
        apart = "" if is_own else derived_id(event.id, state.job)
        draft = JobDraft(state, event.id, now, self.rules, apart=apart)
        kind = _kind(state)
        if state.is_over:
            if isinstance(event, NodesGranted):
                draft.release(event.grants, "the job is over")
        elif handler := kind.events.get(type(event)):
            handler(draft, event)
            kind.conclude(draft, state)
        return draft.decision()

    def time(self, state: JobState, now: datetime, hearing_since: datetime | None) -> JobDecision:
        """Decide about an expected event that has not come, though the controller has been connected long enough."""
        if hearing_since is None:
            return JobDecision(state=state)
        if state.code.pending and updates.is_due(state, now):
            until = state.code.pending.until or now
            apart = named_id(until, state.job, "update", state.generation)
            draft = JobDraft(state, state.code.pending.event or apart, now, self.rules, apart=apart)
            updates.restart_for_update(draft)
            return draft.decision()
        if state.hints_due_at:
            draft = JobDraft(state, "", now, self.rules)
            slow.suspect_hinted(draft)
            return draft.decision()
        if state.slow and slow.is_due(state, now, hearing_since, self.rules.ladder):
            draft = JobDraft(state, state.slow.event, now, self.rules, apart=_by_time(state, now, "slow"))
            slow.replace_slow_nodes(draft)
            return draft.decision()
        if state.free_nodes and growth.is_due(state, now, hearing_since, self.rules):
            draft = JobDraft(state, state.free_nodes.event, now, self.rules, apart=_by_time(state, now, "growth"))
            growth.claim(draft)
            return draft.decision()
        if state.replacement_due_at and now >= state.replacement_due_at:
            draft = JobDraft(state, "", now, self.rules)
            replacement.unanswered(draft)
            warm_up.judge_held(draft)
            return draft.decision()
        if warm_up.is_due(state, now, hearing_since):
            draft = JobDraft(state, state.ordered_by or "", now, self.rules, apart=_by_time(state, now, "warm-up"))
            warm_up.overdue(draft)
            return draft.decision()
        if state.doubts and doubts.is_due(state, now, hearing_since):
            draft = JobDraft(state, "", now, self.rules)
            doubts.judge(draft, hearing_since)
            return draft.decision()
        if any(shared_faults.is_over(state, key, now, self.rules.ladder) for key in state.shared):
            apart = _by_time(state, now, "shared")
            draft = JobDraft(state, apart, now, self.rules, apart=apart)
            shared_faults.close_over(draft)
            return draft.decision()
        deadline = state.deadline
        if deadline is None or not _is_over(state, deadline, now, hearing_since):
            return JobDecision(state=state)
        return self._overdue(state, deadline, now)

    def _overdue(self, state: JobState, deadline: Deadline, now: datetime) -> JobDecision:
        if isinstance(state.phase, Waiting):
            draft = JobDraft(state, state.ordered_by or "", now, self.rules)
            absent_nodes.pause_over(draft)
            return draft.decision()
        # The finding has a separate id, the cause of what follows: the same however often this is repeated.
        start = named_id(deadline.until, state.job, deadline.awaited, state.generation)
        draft = JobDraft(state, start, now, self.rules)
        passed = draft.emit(
            DeadlinePassed,
            awaited=deadline.awaited,
            waited_s=deadline.waited_s(now),
            missing_nodes=tuple(node for node in state.nodes if node not in reported(state.phase)),
            cause=None,
        )
        draft.cause = passed.id
        kind = _kind(state)
        kind.deadlines[type(state.phase)](draft, passed)
        kind.conclude(draft, state)
        return draft.decision()

    def is_forgotten(self, ended_at: datetime, now: datetime) -> bool:
        """Return True if a job that ended then has been kept for long enough; its name stays taken."""
        return now - ended_at >= timedelta(days=self.retention.ended_jobs_days)
