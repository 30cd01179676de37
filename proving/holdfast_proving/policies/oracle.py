"""The oracle: production with a ladder that reads the ledger of the truth.

It pays for restarts and waits for machines like any policy, so what another one loses beyond it is the price of that
one's judgement. It evicts who is at fault and nobody else, and replaces machines that are away without blocking them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from holdfast.events import FailSlowLocated, Inspection
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.load import Settings
from holdfast.symptoms import Symptom
from holdfast_controller.plan.code.updates import is_of_present_code
from holdfast_controller.plan.doubt import shared_faults
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import alerts, breaker, recovery, rungs, slow
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Running
from holdfast_proving.policies.mutation import HANDLERS
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_proving.scenario.last_words import ACCUSING
from holdfast_proving.scenario.scenario import FaultKind
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.training import Training

AWAY_S = 60.0
RESTART_S = 40.0
"""About the price of a restart that takes no longer by its job's plan: slowness has to exceed it."""


def culprits(insight: Insight, members: Iterable[str]) -> tuple[str, ...]:
    """Return the members whose own faults stop the job again and again."""
    at_s = insight.agenda.seconds
    return tuple(
        sorted(
            member
            for member in members
            if any(
                fault.culprit == member and fault.kind.effect != "slow"
                for fault in insight.ledger.of_machine(member, at_s)
            )
        )
    )


def shown(insight: Insight, members: Iterable[str]) -> tuple[str, ...]:
    """Return those of them whose faults have stopped a job before now."""
    numbers = {showing.fault for showing in insight.ledger.showings}
    at_s = insight.agenda.seconds
    return tuple(
        node
        for node in culprits(insight, members)
        if any(fault.number in numbers for fault in insight.ledger.of_machine(node, at_s))
    )


def evident(insight: Insight, members: Iterable[str]) -> tuple[str, ...]:
    """Return those of them that evidence names: an alert, a rank's words, or a second failure."""
    at_s = insight.agenda.seconds
    stops = {(it.fault, it.generation, it.job) for it in insight.ledger.showings}
    times = Counter(fault for fault, _, _ in stops)
    return tuple(
        node
        for node in culprits(insight, members)
        if any(
            fault.culprit == node and times[fault.number] >= (1 if is_named_at_once(fault.kind) else 2)
            for fault in insight.ledger.of_machine(node, at_s)
            if fault.kind.effect != "slow"
        )
    )


def is_named_at_once(kind: FaultKind) -> bool:
    """Return True if the first failure by such a fault comes with an alert, or with a rank's words about it."""
    return kind.prints in ACCUSING or (kind.alert is not None and kind.alert.confidence != "hint")


def _choose(
    _: Callable[..., Any], insight: Insight, known: Callable[[Insight, Iterable[str]], tuple[str, ...]] = culprits
) -> Callable[..., RungChoice]:
    def choose(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
        if failure.symptom in (Symptom.NODE_LOST, Symptom.NODE_DEPARTED, Symptom.START_TIMEOUT) and failure.node:
            return RungChoice(rung=Rung.REPLACE, reason=failure.text, nodes=(failure.node,))
        if options.can_roll_back:
            return RungChoice(rung=Rung.ROLLBACK, reason=f"{failure.text}; the oracle knows the bug")
        if failure.symptom is Symptom.FAIL_SLOW:
            # Tests beside training show when it has passed.
            return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=failure.group, one_of=True)
        is_named = failure.symptom is Symptom.NODE_UNFIT
        named = culprits(insight, (failure.node,)) if is_named and failure.node else ()
        if at_fault := tuple(dict.fromkeys((*named, *known(insight, options.members)))):
            return RungChoice(rung=Rung.EVICT, reason=f"{failure.text}; the oracle knows", nodes=at_fault)
        if failure.symptom is Symptom.SERVICE_ELSEWHERE:
            return RungChoice(rung=Rung.WAIT, reason=failure.text)
        if _is_lost(insight, options.members) and (failure.error or failure.bad_step):
            return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; no restart helps")
        return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)

    return choose


def _blocks_the_present(original: Callable[..., float], insight: Insight) -> Callable[..., float]:
    """Block a machine that is away until its silence shows that: it comes back by itself, as soon as it can."""

    def blocked_for_s(draft: JobDraft, failure: Failure, node: str) -> float:
        is_away = insight.ledger.was_away(node, insight.agenda.seconds)
        blocked_s = original(draft, failure, node)
        return min(AWAY_S, blocked_s) if is_away else blocked_s

    return blocked_for_s


def _is_lost(insight: Insight, members: Iterable[str]) -> bool:
    """Return True if the code or the data of the job on these machines has to change."""
    training = insight.training_on(members)
    return training is not None and any(
        fault.is_fatal and fault.place == training.plan.name for fault in insight.ledger.open()
    )


def _code_has_bug(_: Callable[..., Any], insight: Insight) -> Callable[..., bool]:
    def can_roll_back(state: JobState, generation: int) -> bool:
        training = insight.training_on(state.nodes)
        run = training.run if training is not None else None
        return (
            (state.code.pending or state.code.fallback) is not None
            and is_of_present_code(state, generation)
            and training is not None
            and run is not None
            and any(
                fault.kind.version == run.version != "" and fault.place == training.plan.name
                for fault in insight.ledger.open()
            )
        )

    return can_roll_back


def _rolls_slow_code_back(original: Callable[..., Any], insight: Insight) -> Callable[..., None]:
    has_bug = _code_has_bug(original, insight)

    def located(draft: JobDraft, event: FailSlowLocated) -> None:
        state = draft.state
        if isinstance(state.phase, Running) and has_bug(state, event.generation or 0):
            failure = Failure(
                symptom=Symptom.FAIL_SLOW, generation=state.generation, step=state.step, text=event.summary
            )
            recovery.handle_failure(draft, failure)
        else:
            original(draft, event)

    return located


def _alert_counts(original: Callable[..., Any], insight: Insight) -> Callable[..., Failure | None]:
    def failure(state: JobState, event: Inspection, now: Any, policy: LadderPolicy) -> Failure | None:
        if event.state != "alert" or event.node not in culprits(insight, state.nodes):
            return None
        return Failure(
            symptom=Symptom.NODE_UNFIT,
            generation=state.generation,
            step=state.step,
            text=alerts.describe(event),
            node=event.node,
            evidence=(event.id,),
        )

    return failure


def _slow_faults(insight: Insight, training: Training) -> list[Fault]:
    """Return the faults that slow a training down, and that will cost more than a restart."""
    at_s, members = insight.agenda.seconds, training.run.up if training.run else ()
    price_s = max(RESTART_S, training.plan.restart_s) + training.thrown_away_s
    found = {
        fault.number: fault
        for member in members
        for fault in insight.ledger.of_machine(member, at_s)
        if fault.kind.effect == "slow" and fault.culprit == member
    }
    return [fault for fault in found.values() if cost_left_s(fault, at_s) > price_s]


def cost_left_s(fault: Fault, at_s: float) -> float:
    """Return the time that a job would still lose to a slow machine."""
    share = 1.0 - 1.0 / fault.kind.slowdown
    return share * max(0.0, fault.since_s + fault.lasts_s - at_s) if fault.kind.lasts == "while" else float("inf")


def _slow_suspects(_: Callable[..., Any], insight: Insight) -> Callable[..., tuple[str, ...]]:
    def suspects(event: FailSlowLocated, policy: LadderPolicy) -> tuple[str, ...]:
        training = next((it for it in insight.trainings if it.job == event.job), None)
        return tuple(sorted({fault.place for fault in _slow_faults(insight, training)})) if training else ()

    return suspects


def _named_slow(original: Callable[..., Any], insight: Insight) -> Callable[..., tuple[str, ...]]:
    slow_ones = _slow_suspects(original, insight)

    def suspects(event: FailSlowLocated, policy: LadderPolicy) -> tuple[str, ...]:
        named = {*event.nodes, *event.one_of, *(end for link in event.links for end in link)}
        return tuple(node for node in slow_ones(event, policy) if node in named)

    return suspects


def _never(_: Callable[..., Any], __: Insight) -> Callable[..., bool]:
    return lambda *_: False


ORACLE = Policy(
    name="oracle",
    about="production with a ladder that knows who is at fault",
    settings=Settings(ladder=LadderPolicy(attempts_max=100_000, alerts_wait_s=0.0)),
    patches=(
        Patch(recovery, "choose", _choose),
        Patch(recovery, "can_roll_back", _code_has_bug),
        Patch(rungs, "_blocked_for_s", _blocks_the_present),
        Patch(HANDLERS, "FailSlowLocated", _rolls_slow_code_back),
        Patch(alerts, "failure", _alert_counts),
        Patch(slow, "_suspects", _slow_suspects),
        Patch(slow, "price", lambda *_: lambda *_: slow.Price(restart_s=1.0, redo_s=0.0)),
        Patch(slow, "can_resume", lambda *_: lambda state: True),
        Patch(shared_faults, "compare", lambda *_: lambda *_: None),
        Patch(breaker, "opens", _never),
    ),
)

INSTEAD: dict[str, Callable[[Callable[..., Any], Insight], Callable[..., Any]]] = {
    "choose": partial(_choose, known=shown),
    "_suspects": _named_slow,
}

INFORMED = msgspec.structs.replace(
    ORACLE,
    name="informed",
    about="the oracle without foresight: it knows who is at fault once it has failed a job or raised an alert",
    patches=tuple(Patch(it.owner, it.name, INSTEAD.get(it.name, it.make)) for it in ORACLE.patches),
)

OBSERVANT = msgspec.structs.replace(
    ORACLE,
    name="observant",
    about="the oracle with no more than evidence: it knows who is at fault by an alert, a rank's words, or a second"
    " failure, and of slowness what the analyzer finds",
    patches=tuple(
        msgspec.structs.replace(it, make=partial(_choose, known=evident)) if it.name == "choose" else it
        for it in ORACLE.patches
        if it.owner not in (slow, alerts)
    ),
)
