"""The ladders of the papers, and what is usual without one of them, as policies.

Each is production with the paper's answers in place of ours; what a paper leaves open is answered as in production.
`conditions` has what it costs: where a paper's restart takes longer than ours, and where failures are noticed later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engines.checks.suites import suite_for
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.load import Settings
from holdfast.symptoms import Symptom
from holdfast_controller.plan import draft
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.doubt import shared_faults
from holdfast_controller.plan.incident import alerts, breaker, recovery, slow
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import HANGS, LadderOptions, RungChoice
from holdfast_controller.plan.incident.rungs import ABSENT
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_proving.scenario.scenario import FaultKind, JobPlan, Scenario

Choose = Callable[[Incident, Failure, LadderOptions, LadderPolicy], RungChoice]

REQUEUE_S = 454.0
"""Requeue of a job of 128 machines (ByteRobust, Table 7)."""
TRANSOM_RESTART_S = 600.0
"""Average restart (TRANSOM, 6.B)."""
TORCHRUN_START_S = 8.3
"""From a killed rank to the first step of eight ranks with torchrun, measured on two cores over gloo."""
MAX_RESTARTS = 3
"""Restarts of a job by torchrun, as its documentation's examples have it."""
WATCHDOG_S = 600.0
"""Time to notice a hang without inspections: the default timeout of torch.distributed (ByteRobust, Table 3)."""
UNLIMITED = 1_000_000


def _choosing(instead: Callable[[Incident, Failure, LadderOptions], RungChoice | None]) -> Patch:
    """Replace the choice of a rung; None leaves it to production."""

    def make(original: Choose, _: Insight) -> Choose:
        def choose(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
            return instead(incident, failure, options) or original(incident, failure, options, policy)

        return choose

    return Patch(recovery, "choose", make)


def _never(*_: Any) -> Callable[..., bool]:
    return lambda *_: False


def _nothing(*_: Any) -> Callable[..., None]:
    return lambda *_: None


UNCOMPARED = (
    Patch(shared_faults, "compare", _nothing),
    Patch(slow, "can_resume", lambda *_: lambda _: True),
    Patch(alerts, "trains_well", _never),
)
"""No paper compares what several nodes report, and an alert that may pass evicts from a job that trains."""
TAKES_ANY = Patch(draft, "avoided", lambda *_: lambda *_: ())
"""A scheduler has no records of machines: a job gets any that are free."""

# --- ByteRobust, Fig. 5, as printed -----------------------------------------------------------------


def _byterobust(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice | None:
    if failure.symptom is Symptom.HANG and failure.group:
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=failure.group, one_of=True, mechanism=HANGS)
    if failure.symptom is Symptom.HANG and failure.node:
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(failure.node,), mechanism=HANGS)
    if failure.symptom is Symptom.SERVICE_ELSEWHERE:
        # It has no pause: an external failure is an error without a culprit, so nodes are checked.
        is_checked = not options.can_check or incident.checked >= options.members
        return RungChoice(rung=Rung.REATTEMPT, reason=failure.text) if is_checked else _checks(failure)
    return None


def _checks(failure: Failure) -> RungChoice:
    return RungChoice(rung=Rung.CHECKS, reason=failure.text, suite=suite_for(failure.symptom_name))


BYTEROBUST = Policy(
    name="byterobust",
    about="ByteRobust's Fig. 5 as printed: checks at the first failure, groups are over-evicted at once, no breaker",
    settings=Settings(
        ladder=LadderPolicy(
            reattempts_before_checks=0,
            failures_of_node_max=UNLIMITED // 10,
            alerts_wait_s=0.0,
            slow_suspects_max=64,
        ),
        hang=msgspec.structs.replace(Settings().hang, suspects_max=64),
    ),
    patches=(
        *UNCOMPARED,
        _choosing(_byterobust),
        Patch(slow, "price", lambda *_: lambda *_: slow.Price(restart_s=0.1, redo_s=0.0)),
        Patch(breaker, "opens", _never),
        # What was evicted is tested by people: its page has no test beside training.
        Patch(suspect_test, "follow_up", _nothing),
        Patch(recovery, "may_exchange", _never),
    ),
)

# --- TRANSOM, section IV ------------------------------------------------------------------------------


def _transom(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice | None:
    if failure.symptom in (*ABSENT, Symptom.NODE_DEPARTED, Symptom.NODE_UNFIT):
        # What its anomaly detection names is part of what the error check finds.
        return None
    last = incident.taken[-1] if incident.taken else None
    if options.can_check and not (last and last.rung is Rung.CHECKS and last.generation == failure.generation):
        return _checks(failure)
    return RungChoice(rung=Rung.REATTEMPT, reason=f"{failure.text}; no node failed the error check")


TRANSOM = Policy(
    name="transom",
    about="TRANSOM's: error check of all nodes at each failure, who fails it is evicted, else a restart in place",
    conditions=lambda scenario: _with_restarts_of(scenario, TRANSOM_RESTART_S),
    settings=Settings(ladder=LadderPolicy(alerts_wait_s=0.0)),
    patches=(
        *UNCOMPARED,
        _choosing(_transom),
        Patch(slow, "is_due", _never),
        Patch(suspect_test, "follow_up", _nothing),
    ),
)

# --- the whole job is queued again ----------------------------------------------------------------------


def _requeue(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice:
    return RungChoice(rung=Rung.REPLACE, reason=f"{failure.text}; requeued", nodes=tuple(sorted(options.members)))


def _checked_requeue(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice:
    if options.can_check and options.members - incident.checked and failure.symptom not in ABSENT:
        return _checks(failure)
    return _requeue(incident, failure, options)


def _requeued(scenario: Scenario) -> Scenario:
    return _noticed_by_watchdog(_with_restarts_of(scenario, REQUEUE_S))


REQUEUE = Policy(
    name="requeue",
    about="every failure requeues the whole job, and no machine is checked",
    conditions=_requeued,
    patches=(_choosing(_requeue), TAKES_ANY, Patch(alerts, "failure", _nothing), Patch(slow, "is_due", _never)),
)
CHECKED_REQUEUE = Policy(
    name="requeue_checked",
    about="every failure requeues the whole job, after checks of its machines",
    conditions=_requeued,
    patches=(
        _choosing(_checked_requeue),
        TAKES_ANY,
        Patch(alerts, "failure", _nothing),
        Patch(slow, "is_due", _never),
        Patch(suspect_test, "follow_up", _nothing),
    ),
)

# --- torchrun -----------------------------------------------------------------------------------------


def _torchrun(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice:
    if failure.symptom in (*ABSENT, Symptom.NODE_DEPARTED) and failure.node:
        return RungChoice(rung=Rung.REPLACE, reason=f"{failure.text}; another agent joins", nodes=(failure.node,))
    return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)


def _max_restarts(original: Callable[..., RungChoice], _: Insight) -> Callable[..., RungChoice]:
    def within(
        choice: RungChoice, incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy
    ) -> RungChoice:
        if choice.rung is Rung.REATTEMPT and failure.generation > MAX_RESTARTS:
            return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; {MAX_RESTARTS} restarts are over")
        return original(choice, incident, failure, options, policy)

    return within


TORCHRUN = Policy(
    name="torchrun",
    about=f"torchrun elastic: restarts on the same machines, {MAX_RESTARTS} at most; a lost node is replaced",
    conditions=lambda scenario: _noticed_by_watchdog(_slower_by(scenario, TORCHRUN_START_S)),
    patches=(
        _choosing(_torchrun),
        TAKES_ANY,
        Patch(recovery, "within_limits", _max_restarts),
        Patch(alerts, "failure", _nothing),
        Patch(slow, "is_due", _never),
    ),
)

PAPERS = (BYTEROBUST, TRANSOM, REQUEUE, CHECKED_REQUEUE, TORCHRUN)


# --- conditions ----------------------------------------------------------------------------------------


def _with_jobs(scenario: Scenario, change: Callable[[JobPlan], JobPlan]) -> Scenario:
    return msgspec.structs.replace(scenario, jobs=tuple(map(change, scenario.jobs)))


def _with_restarts_of(scenario: Scenario, total_s: float) -> Scenario:
    """Let a restart take this time from the order to the first step."""
    return _with_jobs(
        scenario, lambda job: msgspec.structs.replace(job, first_step_s=max(job.first_step_s, total_s - job.fork_s))
    )


def _slower_by(scenario: Scenario, more_s: float) -> Scenario:
    return _with_jobs(scenario, lambda job: msgspec.structs.replace(job, first_step_s=job.first_step_s + more_s))


def _noticed_by_watchdog(scenario: Scenario) -> Scenario:
    """Let a hang be noticed when the collectives time out, and name no machine."""

    def change(kind: FaultKind) -> FaultKind:
        if kind.effect != "hang":
            return kind
        naming = msgspec.structs.replace(kind.naming, machine=0.0, group=0.0, wrong=0.0)
        return msgspec.structs.replace(kind, found_after_s=max(kind.found_after_s, WATCHDOG_S), naming=naming)

    return msgspec.structs.replace(scenario, faults=tuple(map(change, scenario.faults)))
