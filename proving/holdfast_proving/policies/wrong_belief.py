"""Wrong policies that believe too much or too little, and that remember too much or too little."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from holdfast.events import Inspection, NodeInspected, StepsCertified, TelemetryAnomaly
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.findings.hang import HangPolicy
from holdfast.settings.load import Settings
from holdfast.settings.timeouts import Timeouts
from holdfast.symptoms import Symptom
from holdfast_controller.plan import generation
from holdfast_controller.plan.checks import checks
from holdfast_controller.plan.doubt import hints, shared_faults
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence import joined
from holdfast_controller.plan.incident import alerts, hangs, rank_exit, recovery, slow
from holdfast_controller.plan.incident.closing import passed_step
from holdfast_controller.plan.incident.incident import Cause, Failure, Proof, Rung
from holdfast_controller.plan.incident.rung_choice import CHECKS, FAILURES, RungChoice
from holdfast_controller.plan.phase import LIVE, Running
from holdfast_proving.policies.mutation import (
    HANDLERS,
    Change,
    Function,
    always,
    blames,
    ladder_of,
    taking,
    value,
    with_option,
)
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_standby.inventory_draft import InventoryDraft
from holdfast_standby.plan import InventoryPlanner


def _believes_silence(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    """Take nodes that passed stop-time checks for healthy, however often they fail."""
    is_cleared = draft.incident.checked >= set(choice.nodes) and choice.mechanism in (FAILURES, CHECKS)
    if choice.rung is Rung.EVICT and is_cleared and failure.symptom is not Symptom.NODE_LOST:
        return RungChoice(rung=Rung.REATTEMPT, reason=choice.reason)
    return choice


def _raises_hints(original: Function, insight: Insight) -> Function:
    def failure(state: Any, event: Inspection, now: Any, policy: Any) -> Failure | None:
        is_hint = event.state == "alert" and event.confidence == "hint"
        found: Failure | None = original(
            state, msgspec.structs.replace(event, confidence="evict") if is_hint else event, now, policy
        )
        return found

    return failure


def _takes_words(original: Function, insight: Insight) -> Function:
    def by_diagnosis(state: Any, found: Any, exits: Any, known: Any) -> Cause | None:
        cause: Cause | None = original(state, found, exits, known)
        if cause is None or not (cause.proof or cause.is_shared):
            return cause
        node = cause.node or exits[-1].node
        return msgspec.structs.replace(cause, proof=Proof.PROVEN, node=node)

    return by_diagnosis


def _tests_anomalies(original: Function, insight: Insight) -> Function:
    """Stop a job that trains for tests at each anomaly of telemetry (TRANSOM's error check, as printed)."""

    def differs(draft: JobDraft, event: TelemetryAnomaly) -> None:
        state = draft.state
        if not isinstance(state.phase, LIVE) or state.incident is not None:
            return
        failure = Failure(
            symptom=Symptom.INFRASTRUCTURE_ERROR,
            generation=state.generation,
            step=state.step,
            text=event.reason,
            evidence=(event.id,),
        )
        original(draft, event)
        draft.rules = msgspec.structs.replace(draft.rules, ladder=LadderPolicy(reattempts_before_checks=0))
        recovery.handle_failure(draft, failure)

    return differs


def _is_machine(original: Function, insight: Insight) -> Function:
    return lambda draft, event: original(draft, msgspec.structs.replace(event, is_machine=True))


def _closes_at_once(original: Function, insight: Insight) -> Function:
    def passed(draft: JobDraft, step: int) -> None:
        incident = draft.state.incident
        passed_step(draft, max(step, incident.failed_step + 1) if incident else step)

    return passed


def _first_of(original: Function, insight: Insight) -> Function:
    return lambda failure, suspects, members: original(failure, suspects[:1], members)


def _closes_at_a_certificate(original: Function, insight: Insight) -> Function:
    def certified(draft: JobDraft, event: StepsCertified) -> None:
        incident = draft.state.incident
        if incident is not None and incident.bad_steps and isinstance(draft.state.phase, Running):
            draft.close_incident("recovered", f"step {event.step} is certified")

    return certified


def _passes_all(original: Function, insight: Insight) -> Function:
    def inspected(planner: InventoryPlanner, draft: InventoryDraft, event: NodeInspected) -> None:
        original(planner, draft, msgspec.structs.replace(event, checks=()))

    return inspected


def _everywhere(change: Change) -> tuple[Patch, ...]:
    """Replace `passed_step` in all modules that use it."""
    return tuple(Patch(module, "passed_step", change) for module in (generation, hangs, rank_exit))


BELIEVES: tuple[Policy, ...] = (
    Policy(
        name="believes_silent_checks",
        about="takes nodes that passed checks for healthy for good",
        patches=(taking(_believes_silence),),
    ),
    Policy(
        name="believes_words",
        about="takes what a rank prints of its machine for proof, whatever the machine's kernel and devices show",
        patches=(Patch(joined, "_by_diagnosis", _takes_words),),
    ),
    Policy(
        name="ignores_confidence",
        about="a rank that names its machine is a crash like any other",
        settings=ladder_of(accusation_confidence_min=1.0),
    ),
    Policy(
        name="believes_hints",
        about="evicts for alerts that prove nothing",
        patches=(Patch(alerts, "failure", _raises_hints),),
    ),
    Policy(
        name="believes_every_hang",
        about="evicts the nodes that stacks name, alone or in a group, certain or not",
        settings=Settings(hang=HangPolicy(evict_confidence_min=0.0)),
        patches=(Patch(HANDLERS, "HangFound", _is_machine),),
    ),
    Policy(
        name="evicts_for_services",
        about="blames the node that met a service's failure",
        patches=(blames(Symptom.SERVICE_ELSEWHERE),),
    ),
    Policy(
        name="hands_out_unfit_nodes",
        about="grants nodes whose self-check failed",
        patches=(Patch(InventoryPlanner, "_inspected", _passes_all),),
    ),
    Policy(
        name="believes_one_test",
        about="evicts one machine after tests, though several fail them",
        patches=(Patch(checks, "named_by_checks", _first_of),),
    ),
    Policy(
        name="ignores_suspicions",
        about="an alert on the node that crashes does not matter",
        patches=(Patch(recovery, "_options", with_option(alerts=())), Patch(joined, "_near", always(()))),
    ),
    Policy(
        name="ignores_repeated_alerts",
        about="an alert that may pass never evicts, however often it comes",
        settings=ladder_of(alerts_max=100),
    ),
    Policy(
        name="ignores_late_evidence",
        about="what becomes known of a generation that was given up does not matter",
        patches=(Patch(rank_exit, "handle_late_failure", always(None)),),
    ),
    Policy(
        name="counts_past_slowness",
        about="slowness that has passed counts",
        patches=(Patch(HANDLERS, "FailSlowRelieved", always(None)),),
    ),
    Policy(
        name="ignores_slow_groups",
        about="slowness of one among several does not matter",
        settings=ladder_of(slow_suspects_max=1, slow_group_share_max=0.0),
    ),
)

HINTED: tuple[Policy, ...] = (
    Policy(
        name="ignores_hints",
        about="a hint about the node that fails is no reason to test it",
        patches=(Patch(recovery, "_options", with_option(hints=())),),
    ),
    Policy(
        name="ignores_heat",
        about="heat of one node is no reason for its job's slowness",
        patches=(Patch(slow, "suspect_hinted", always(None)),),
    ),
    Policy(
        name="believes_old_hints",
        about="heat of hours ago is the reason for slowness that begins now",
        patches=(Patch(hints, "SLOWNESS", value(timedelta(days=1))),),
    ),
    Policy(
        name="tests_each_anomaly",
        about="stops a job that trains well, to test it for an anomaly of telemetry",
        patches=(Patch(HANDLERS, "TelemetryAnomaly", _tests_anomalies),),
    ),
)
"""Policies that judge hints wrongly; `believes_hints` is one more."""

REMEMBERS: tuple[Policy, ...] = (
    Policy(
        name="forgets_nodes",
        about="counts no failure against its node",
        patches=(Patch(recovery, "blame", lambda original, insight: lambda incident, failure, members: incident),),
    ),
    Policy(
        name="never_forgets_alerts",
        about="an alert of long ago counts as if it were new",
        patches=(Patch(alerts, "is_recent", always(True)),),
    ),
    Policy(
        name="closes_at_once",
        about="an incident is over with the next step, whichever",
        patches=_everywhere(_closes_at_once),
    ),
    Policy(
        name="closes_at_a_certificate",
        about="bad numbers are over before the job is past the step at which it failed",
        patches=(Patch(HANDLERS, "StepsCertified", _closes_at_a_certificate),),
    ),
    Policy(
        name="remembers_what_was_shared",
        about="takes an alert for shared since others once reported the same",
        patches=(Patch(shared_faults, "is_over", always(False)),),
    ),
    Policy(name="never_closes", about="no incident is ever over", patches=_everywhere(always(None))),
    Policy(
        name="blocks_for_ever",
        about="an evicted node never comes back",
        settings=Settings(timeouts=Timeouts(block_s=10 * 365 * 86400.0)),
    ),
)
