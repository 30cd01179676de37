"""The controller's decisions: what follows for a job from an event, a request or the passing of time.

Everything here is pure: the same state, input and time give the same outcome, to the letter.
Silence is never taken for good health, and never for recovery: a job comes back only by ranks that say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from holdfast.code.manifest import Manifest
from holdfast.engines.checks.checks_program import are_checks
from holdfast.engines.checks.references import NO_REFERENCES, References
from holdfast.events import (
    AnyEvent,
    BadNumber,
    BreakerReset,
    DeadlinePassed,
    DiagnosticResult,
    FailSlowLocated,
    FailSlowRelieved,
    FirstStep,
    HangFound,
    Inspection,
    JobSubmitted,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    OrderRefused,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    ReplayResult,
    StepRestorable,
    StepsCertified,
    StepTimeMeasured,
)
from holdfast.ids import named_id
from holdfast.requests import ResetBreaker, RollbackJob, StopJob, SubmitJob, UpdateJob
from holdfast.settings.code import CodePolicy
from holdfast.settings.hang import HangPolicy
from holdfast.settings.ladder import LadderPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan import members
from holdfast_controller.plan.checks import checks, replays, suspect_test
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.draft import NO_MANIFESTS, Draft, Outcome
from holdfast_controller.plan.incident import rank_exit, slow
from holdfast_controller.plan.incident.bad_numbers import bad_number, certified
from holdfast_controller.plan.incident.hangs import hung
from holdfast_controller.plan.incident.incident import Failure, Symptom
from holdfast_controller.plan.incident.recovery import Rules, failed, pause_over
from holdfast_controller.plan.job import LIVE, OVER, Ending, JobPhase, JobState
from holdfast_controller.plan.submission import masked, new_job, no_longer, of_before

STEP_RECORD_S = 10.0
"""While nothing is wrong, the controller notes a job's step at most this often."""


class Planner:
    """The decisions under one set of limits; holds no state of its own.

    `manifests` are those of the code versions that are held; a version never changes. `references` are the answers of
    tests that machines agreed on.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        policy: LadderPolicy,
        retention: RetentionPolicy | None = None,
        mechanisms: MechanismPolicy | None = None,
        code_policy: CodePolicy | None = None,
        manifests: Mapping[str, Manifest] = NO_MANIFESTS,
        hang: HangPolicy | None = None,
        references: References = NO_REFERENCES,
    ) -> None:
        self.timeouts = timeouts
        self.policy = policy
        self.rules = Rules(ladder=policy, mechanisms=mechanisms or MechanismPolicy(), hang=hang or HangPolicy())
        self.retention = retention or RetentionPolicy()
        self.code_policy = code_policy or CodePolicy()
        self.manifests = manifests
        self.references = references

    def _draft(self, state: JobState, cause: str, now: datetime) -> Draft:
        return Draft(state, cause, now, self.timeouts, self.manifests, self.references)

    # --- requests of people ---------------------------------------------------------------------

    def submit(
        self, state: JobState | None, request: SubmitJob, now: datetime, forgotten: datetime | None = None
    ) -> Outcome:
        """A person asks for a job. `forgotten`: when a job of this name ended that is not known any more."""
        spec = request.spec
        if forgotten:
            return Outcome(state=None, refusal=f"{of_before(spec.name, forgotten)}; choose another --name")
        if state is not None:
            return Outcome(state=state, refusal=f"a job named {spec.name} exists already; choose another --name")
        if why := updates.refused_at_submission(spec, request.code, self.manifests):
            return Outcome(state=None, refusal=why)
        try:
            job = new_job(spec, now, updates.first_version(request.code, request.asked_by, now))
        except ValueError as error:
            return Outcome(state=None, refusal=str(error))
        draft = self._draft(job, request.id, now)
        draft.say(JobSubmitted, spec=masked(job.spec), reason=f"asked by {request.asked_by}")
        draft.claim("the job needs nodes to start")
        return draft.outcome()

    def stop(
        self, state: JobState | None, request: StopJob, now: datetime, forgotten: datetime | None = None
    ) -> Outcome:
        """A person asks for a job's end. `forgotten`: as for `submit`."""
        if state is None or forgotten or state.phase in OVER:
            return no_longer(state, request.job, forgotten)
        draft = self._draft(state, request.id, now)
        reason = f"asked by {request.asked_by}"
        if state.phase is not JobPhase.STOPPING:
            draft.end(Ending(phase=JobPhase.STOPPED, reason=reason, exit_code=143))
        return draft.outcome()

    def change_code(
        self, state: JobState | None, request: UpdateJob | RollbackJob, now: datetime, forgotten: datetime | None = None
    ) -> Outcome:
        """A person asks for another version of a job's code. `forgotten`: as for `submit`."""
        if state is None or forgotten or state.phase in OVER:
            return no_longer(state, request.job, forgotten)
        draft = self._draft(state, request.id, now)
        change = updates.update(draft, request) if isinstance(request, UpdateJob) else updates.rollback(draft, request)
        return Outcome(state=state, refusal=change) if change else draft.outcome()

    def reset_breaker(self, state: JobState | None, request: ResetBreaker, now: datetime) -> Outcome:
        """A person has looked at what was evicted: the job's nodes may be evicted again."""
        if state is None or state.phase in OVER:
            return no_longer(state, request.job, None)
        if state.breaker_open_since is None:
            return Outcome(state=state, refusal=f"the circuit breaker of job {request.job} is closed")
        draft = self._draft(state.update(breaker_open_since=None, evictions=()), request.id, now)
        draft.say(BreakerReset, reason=f"asked by {request.asked_by}")
        return draft.outcome()

    # --- events ---------------------------------------------------------------------------------

    def event(self, state: JobState, event: AnyEvent, now: datetime) -> Outcome:
        """What follows from an event that concerns this job."""
        draft = self._draft(state, event.id, now)
        if state.phase in OVER:
            if isinstance(event, NodesGranted):
                draft.release(event.grants, "the job is over")
            return draft.outcome()
        match event:
            case NodesGranted():
                suspect_test.joined(draft, event)
                members.granted(draft, event)
            case NodesAwaited():
                suspect_test.awaited(draft, event)
                members.awaited(draft, event)
            case RanksStarted():
                self._started(draft, event)
            case FirstStep():
                self._first_step(draft, event)
            case Progress():
                self._progress(draft, event)
            case RanksFinished():
                self._finished(draft, event)
            case RanksStopped():
                self._stopped(draft, event)
            case ProcessExited():
                suspect_test.heard(draft, event)
                rank_exit.exited(draft, event, self.rules)
            case NodeLost() | NodeDeparted():
                suspect_test.heard(draft, event)
                members.gone(draft, event, self.rules)
            case OrderRefused():
                members.refused(draft, event)
            case Inspection():
                rank_exit.inspected(draft, event, self.rules)
            case DiagnosticResult() if state.retest:
                suspect_test.heard(draft, event)
            case DiagnosticResult():
                checks.found(draft, event, self.rules)
            case ReplayResult():
                replays.found(draft, event, self.rules)
            case HangFound():
                hung(draft, event, self.rules)
            case FailSlowLocated():
                slow.located(draft, event, self.rules)
            case FailSlowRelieved():
                slow.relieved(draft, event)
            case BadNumber():
                bad_number(draft, event, self.rules)
            case StepsCertified():
                certified(draft, event)
            case StepTimeMeasured():
                draft.state = draft.state.update(step_s=event.median_s)
            case StepRestorable():
                newest = max(event.step, -1 if state.restorable_step is None else state.restorable_step)
                draft.state = draft.state.update(restorable_step=newest, has_checkpoints=True)
            case _:
                pass
        suspect_test.conclude_if_over(draft, state)
        return draft.outcome()

    def time(self, state: JobState, now: datetime, hearing_since: datetime | None) -> Outcome:
        """What follows from the time: something awaited has not come, though it would have been heard since then."""
        awaiting = state.awaiting
        if hearing_since is not None and state.code.pending and updates.is_due(state, now):
            until = state.code.pending.until or now
            draft = self._draft(state, named_id(until, state.job, "update", state.generation), now)
            updates.due(draft)
            return draft.outcome()
        if state.slow and hearing_since is not None and slow.is_due(state, now, hearing_since):
            draft = self._draft(state, named_id(state.slow.due_at, state.job, "slow", state.generation), now)
            slow.due(draft, self.rules)
            return draft.outcome()
        if awaiting is None or hearing_since is None:
            return Outcome(state=state)
        if now - max(awaiting.since, hearing_since) < awaiting.until - awaiting.since:
            return Outcome(state=state)
        if awaiting.what == "pause":
            draft = self._draft(state.update(awaiting=None), state.ordered_by or "", now)
            pause_over(draft)
            return draft.outcome()
        here = {
            "ranks_started": state.started,
            "first_step": state.stepped,
            "ranks_stopped": state.gone,
            "nodes_granted": frozenset[str](),
            "checks_done": state.checks.over if state.checks else frozenset(),
            "replay_done": state.replay.over if state.replay else frozenset(),
        }[awaiting.what]
        missing = tuple(node for node in state.nodes if node not in here)
        # The finding gets an id of its own: it is the cause of what follows, and the same however often time is asked.
        start = named_id(awaiting.until, state.job, awaiting.what, state.generation)
        draft = self._draft(state.update(awaiting=None), start, now)
        waited_s = (now - awaiting.since).total_seconds()
        finding = draft.say(DeadlinePassed, awaited=awaiting.what, waited_s=waited_s, missing_nodes=missing, cause=None)
        draft.cause = finding.id
        if awaiting.what == "ranks_stopped":
            draft.close()
        elif awaiting.what == "nodes_granted":
            suspect_test.unclaimed(draft)
        elif awaiting.what == "checks_done":
            checks.overdue(draft, self.rules)
        elif awaiting.what == "replay_done":
            replays.overdue(draft, self.rules)
        elif awaiting.what == "ranks_started" and set(missing) == set(state.nodes):
            # When nobody answers, the silence says nothing about any one node.
            text = f"no node started its ranks within {waited_s:.0f} s"
            failed(draft, self._failure(state, Symptom.START_TIMEOUT, text), self.rules)
        elif awaiting.what == "ranks_started":
            for node in missing:
                if draft.state.phase is JobPhase.STOPPING:
                    break
                text = f"{node} did not start its ranks within {waited_s:.0f} s"
                failed(draft, self._failure(state, Symptom.START_TIMEOUT, text, node), self.rules)
        elif are_checks(state.spec):
            text = f"the checks were not over after {waited_s:.0f} s"
            draft.end(Ending(phase=JobPhase.FAILED, reason=text, exit_code=1))
        elif state.has_stepped or state.incident:
            text = f"no first step within {waited_s:.0f} s of starting generation {state.generation}"
            failed(draft, self._failure(state, Symptom.NO_FIRST_STEP, text), self.rules)
        # A job that never made a step may be one that makes none, or compiles for long: the finding is all there is.
        suspect_test.conclude_if_over(draft, state)
        return draft.outcome()

    def is_forgotten(self, ended_at: datetime, now: datetime) -> bool:
        """Whether a job that ended then has been kept for long enough; its name stays taken."""
        return now - ended_at >= timedelta(days=self.retention.ended_jobs_days)

    # --- the life of a generation ---------------------------------------------------------------

    def _started(self, draft: Draft, event: RanksStarted) -> None:
        state = draft.state
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in LIVE:
            return
        started = state.started | {event.node}
        draft.state = state.update(started=started)
        draft.await_first_step_if_started()

    def _first_step(self, draft: Draft, event: FirstStep) -> None:
        state = draft.state
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in LIVE:
            return
        stepped = state.stepped | {event.node}
        draft.state = state.update(
            stepped=stepped,
            step=event.step,
            step_seen_at=draft.now,
            has_stepped=True,
            is_numbered=event.is_numbered,
        )
        if stepped >= set(state.nodes) and state.phase is JobPhase.STARTING:
            took_s = (draft.now - state.started_at).total_seconds() if state.started_at else 0.0
            longest_s = max(took_s, state.first_step_s or 0.0)
            draft.state = draft.state.become(
                JobPhase.RUNNING, awaiting=None, first_step_s=longest_s, running_since=draft.now
            )
            updates.began(draft, event.step)
        draft.went_past(event.step)

    def _progress(self, draft: Draft, event: Progress) -> None:
        state = draft.state
        if event.generation != state.generation or state.phase is not JobPhase.RUNNING or event.step <= state.step:
            return
        idle_s = (draft.now - state.step_seen_at).total_seconds() if state.step_seen_at else STEP_RECORD_S
        if state.incident or updates.is_on_trial(state) or idle_s >= STEP_RECORD_S:
            draft.state = state.update(step=event.step, step_seen_at=draft.now)
            draft.went_past(event.step)
            draft.close_when_settled(self.policy.settled_s)
            updates.proved(draft, self.code_policy)

    def _finished(self, draft: Draft, event: RanksFinished) -> None:
        state = draft.state
        if state.phase is JobPhase.STOPPING and event.generation == state.generation - 1 and event.node in state.nodes:
            draft.state = state.update(gone=state.gone | {event.node})
            draft.close_when_gone()
            return
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in LIVE:
            return
        finished = state.finished | {event.node}
        draft.state = state.update(finished=finished)
        if finished >= set(state.nodes) and suspect_test.all_told(state):
            draft.close_incident("recovered", "the job ran to its end")
            draft.complete("every rank ended with exit code 0")

    # --- failures -------------------------------------------------------------------------------

    def _failure(self, state: JobState, symptom: Symptom, text: str, node: str | None = None) -> Failure:
        return Failure(symptom=symptom, generation=state.generation, step=state.step, text=text, node=node)

    # --- the end --------------------------------------------------------------------------------

    def _stopped(self, draft: Draft, event: RanksStopped) -> None:
        state = draft.state
        if event.ordered_generation < state.generation or event.node not in state.nodes:
            return
        if state.phase is JobPhase.STOPPING:
            draft.state = state.update(gone=state.gone | {event.node})
            draft.close_when_gone()
