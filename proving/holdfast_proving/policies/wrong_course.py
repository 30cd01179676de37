"""Wrong policies about a job's course: needless restarts, too much thrown away, too long pauses, too many machines."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.events import Inspection, Progress
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.load import Settings
from holdfast.symptoms import Symptom
from holdfast_controller import service
from holdfast_controller.plan import generation
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import alerts, recovery, rungs, slow
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.incident.rungs import ABSENT
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Running, Starting
from holdfast_controller.plan.transitions import become_completed, become_starting
from holdfast_proving.policies.mutation import HANDLERS, Function, always, choosing, ladder_of, taking
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_proving.scenario.scenario import Scenario

RESTARTED_EVERY_S = 4 * 3600.0
BYSTANDERS = 3
LATE_S = 60.0


def _declares_victory(original: Function, insight: Insight) -> Function:
    def take(draft: JobDraft, failure: Failure, choice: RungChoice, options: LadderOptions) -> None:
        if choice.rung is Rung.REATTEMPT and isinstance(draft.state.phase, Running):
            draft.close_incident("recovered", failure.text)
            become_completed(draft, failure.text)
        else:
            original(draft, failure, choice, options)

    return take


def _gives_up_at_hangs(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    is_hang = failure.symptom is Symptom.HANG
    return RungChoice(rung=Rung.STOP, reason=failure.text) if is_hang else choice


def _dawdles(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    may_wait = choice.rung is Rung.REATTEMPT and isinstance(draft.state.phase, LIVE)
    return msgspec.structs.replace(choice, rung=Rung.WAIT) if may_wait else choice


def _twice(original: Function, insight: Insight) -> Function:
    """Restart once more when the ranks of a restart run."""

    def running(draft: JobDraft, starting: Starting, **more: Any) -> None:
        original(draft, starting, **more)
        incident = draft.state.incident
        if incident is not None and incident.attempts == 1:
            become_starting(draft, "once more")

    return running


def _with_bystanders(*, are_tested: bool) -> Patch:
    """Evict other members beside the suspects; `are_tested`: as a group, whose innocent members come back."""

    def change(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
        others = tuple(node for node in draft.state.nodes if node not in choice.nodes)[:BYSTANDERS]
        if choice.rung is not Rung.EVICT or failure.symptom in ABSENT:
            return choice
        return msgspec.structs.replace(choice, nodes=(*choice.nodes, *others), one_of=are_tested)

    return taking(change)


def _exchanges_all(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    is_restart = choice.rung is Rung.REATTEMPT
    return msgspec.structs.replace(choice, rung=Rung.REPLACE, nodes=draft.state.nodes) if is_restart else choice


def _from_hints(original: Function, insight: Insight) -> Function:
    """Take a hint for a crash, of which nothing more is known."""

    def inspected(draft: JobDraft, event: Inspection) -> None:
        original(draft, event)
        is_hint = event.state == "alert" and event.confidence == "hint"
        if is_hint and isinstance(draft.state.phase, LIVE) and event.node in draft.state.nodes:
            failure = Failure(
                symptom=Symptom.PEER_LOST,
                generation=draft.state.generation,
                step=draft.state.step,
                text=alerts.describe(event),
                evidence=(event.id,),
            )
            recovery.handle_failure(draft, failure)

    return inspected


def _by_the_clock(original: Function, insight: Insight) -> Function:
    def progressed(draft: JobDraft, event: Progress) -> None:
        original(draft, event)
        phase = draft.state.phase
        if isinstance(phase, Running) and (draft.now - phase.since).total_seconds() > RESTARTED_EVERY_S:
            become_starting(draft, "it is time")

    return progressed


def _begins_late(scenario: Scenario) -> Scenario:
    """Let a minute pass in each start, as by a decision that comes a minute late."""
    later = (msgspec.structs.replace(job, first_step_s=job.first_step_s + LATE_S) for job in scenario.jobs)
    return msgspec.structs.replace(scenario, jobs=tuple(later))


def _finds_late(scenario: Scenario) -> Scenario:
    """Let hangs, slowness and bad numbers be found two minutes later."""
    later = (msgspec.structs.replace(kind, found_after_s=kind.found_after_s + 2 * LATE_S) for kind in scenario.faults)
    return msgspec.structs.replace(scenario, faults=tuple(later))


def _limit(change: Any) -> Patch:
    """Change the newest step that a restart may restore."""

    def make(original: property, insight: Insight) -> property:
        assert original.fget is not None
        limit_of = original.fget
        return property(lambda state: change(state, limit_of(state)))

    return Patch(JobState, "next_limit", make)  # type: ignore[arg-type]


COURSES: tuple[Policy, ...] = (
    Policy(
        name="declares_victory",
        about="a job that fails has completed",
        patches=(Patch(recovery, "take", _declares_victory),),
    ),
    Policy(name="gives_up_at_hangs", about="stops a job that hangs", patches=(choosing(_gives_up_at_hangs),)),
    Policy(
        name="dawdles",
        about="ten minutes pass before each restart",
        patches=(taking(_dawdles), Patch(rungs, "pause_s", always(600.0))),
    ),
    Policy(
        name="pauses_for_nothing",
        about="a minute passes before each restart, though no service is away",
        patches=(taking(_dawdles), Patch(rungs, "pause_s", always(60.0))),
    ),
    Policy(
        name="restarts_twice",
        about="restarts a job for each failure twice",
        patches=(Patch(generation, "become_running", _twice),),
    ),
    Policy(
        name="restarts_for_any_slowness",
        about="restarts for slowness that costs less than the restart",
        patches=(Patch(slow, "price", always(slow.Price(restart_s=0.001, redo_s=0.0))),),
    ),
    Policy(
        name="never_settles",
        about="an incident lasts until the job is past the step at which it had failed, however long the way back is",
        patches=(Patch(generation, "close_when_settled", always(None)),),
    ),
    Policy(
        name="compares_own_nodes",
        about="compares alerts about what nodes share within a job only",
        patches=(Patch(service, "reporters_of", always({})),),
    ),
    Policy(name="begins_late", about="each start takes a minute longer than it has to", conditions=_begins_late),
    Policy(name="finds_late", about="hangs and slowness are found two minutes late", conditions=_finds_late),
    Policy(
        name="checks_each_failure",
        about="tests all machines at each failure",
        settings=ladder_of(reattempts_before_checks=0),
    ),
    Policy(
        name="waits_for_the_price",
        about="waits until slowness has cost a restart, however long it lasts on average",
        settings=ladder_of(slow_lasts_s=0.0),
    ),
    Policy(
        name="expects_long_slowness",
        about="takes slowness for as long as it is in the largest jobs, and restarts for it at any price",
        settings=ladder_of(slow_lasts_s=4320.0),
    ),
    Policy(
        name="pauses_for_long",
        about="an hour passes before a failed service is tried again",
        settings=ladder_of(service_pause_s=3600.0, service_pause_s_max=3600.0, service_wait_s_max=86400.0),
    ),
    Policy(
        name="gives_up_at_outages",
        about="waits five minutes for a service",
        settings=ladder_of(service_wait_s_max=300.0),
    ),
    Policy(
        name="evicts_bystanders",
        about="evicts some more than the suspects",
        patches=(_with_bystanders(are_tested=False),),
    ),
    Policy(
        name="tests_bystanders",
        about="evicts some more than the suspects, and tests them all",
        patches=(_with_bystanders(are_tested=True),),
    ),
    Policy(name="exchanges_all", about="other machines in place of restarts", patches=(taking(_exchanges_all),)),
    Policy(
        name="restarts_at_hints",
        about="restarts of free will",
        patches=(Patch(HANDLERS, "Inspection", _from_hints),),
    ),
    Policy(
        name="restarts_by_the_clock",
        about="restarts a healthy job every four hours",
        patches=(Patch(HANDLERS, "Progress", _by_the_clock),),
    ),
    Policy(
        name="goes_back_too_far",
        about="after bad numbers to half of the certified steps",
        patches=(_limit(lambda state, limit: None if limit is None else limit // 2),),
    ),
    Policy(
        name="goes_back_each_time",
        about="a thousand steps with each restart",
        patches=(_limit(lambda state, limit: min(x for x in (limit, max(0, state.step - 1000)) if x is not None)),),
    ),
    Policy(
        name="slow_to_blame",
        about="a node may fail six times",
        settings=Settings(ladder=LadderPolicy(failures_of_node_max=6, reattempts_before_checks=6)),
    ),
)
