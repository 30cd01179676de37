"""Judges of a job's course: it goes on, and is given up only where nothing else is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.events import Eviction, FailSlowLocated, JobFinished
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import GRACE_S, History
from holdfast_proving.policies.oracle import cost_left_s
from holdfast_proving.truth.generator import HOUR_S
from holdfast_proving.world.training import Training

NOTICED_S = 900.0
STARVED_S = 1800.0
SPOILED_S_MAX = 900.0
"""Sound time that one spoiled state may cost."""
OUTAGE_S = HOUR_S
"""A service that is away for longer may end a job (`[ladder] service_wait_s_max`)."""
RETRIES_MAX = 6
SLOW_LASTS_S = LadderPolicy().slow_lasts_s
"""Time that slowness lasts on average: nobody knows when it passes."""
PAYS_SHARE = 0.75
RESTARTS_COST = 2.0
"""Slowness that costs so many restarts is not waited out, whatever a restart costs beyond what its plan says."""
PROMPT_S = 60.0
"""Time in which a machine leaves that tests have named and that is not worth a wait."""
SETTLED_S = 600.0
"""Time from a start in which an incident may still be open."""
PAUSE_S_MAX = 400.0
"""A service is tried again within this time (`[ladder] service_pause_s_max`, and the restart)."""


def given_up(history: History) -> Iterator[Complaint]:
    """Complain about jobs that ended though they could have gone on."""
    for at_s, event in history.of(JobFinished):
        training = _training(history, event.job or "")
        if training is None or event.outcome != "failed" or _must_end(history, training.plan.name, at_s):
            continue
        yield Complaint(wrong=Wrong.GAVE_UP, at_s=at_s, job=event.job or "", text=event.reason)


def _must_end(history: History, plan: str, at_s: float) -> bool:
    for record in history.ledger.records.values():
        if not record.holds(at_s, OUTAGE_S):
            continue
        is_long_outage = record.fault.kind.place == "cluster" and at_s - record.began_s > OUTAGE_S
        if is_long_outage or (record.fault.is_fatal and record.fault.place == plan):
            return True
    return False


def false_ends(history: History) -> Iterator[Complaint]:
    """Complain about jobs that are reported as completed before their last step."""
    for at_s, event in history.of(JobFinished):
        training = _training(history, event.job or "")
        if training is None or event.outcome != "completed":
            continue
        if not training.plan.steps or training.reached < training.plan.steps:
            text = f"it is reported as completed at step {training.reached} of {training.plan.steps or 'no end'}"
            yield Complaint(wrong=Wrong.NOT_COMPLETED, at_s=at_s, job=event.job or "", text=text)


def pauses(history: History) -> Iterator[Complaint]:
    """Complain about pauses for which no service had been away, or that go on though none is away any more."""
    outages = [it for it in history.ledger.records.values() if it.fault.kind.prints == "service"]
    for training in history.cluster.trainings:
        for stretch in training.book.stretches:
            if stretch.cause != "pause":
                continue
            ends = [it.ended_s or history.end_s for it in outages if it.began_s <= stretch.until_s]
            back_s = max([stretch.since_s, *(end_s for end_s in ends if end_s <= stretch.until_s)])
            is_away = any(end_s > stretch.until_s for end_s in ends)
            # Such a pause may follow another one at once.
            had_reason = any(end_s >= stretch.since_s - 2.0 * PAUSE_S_MAX for end_s in ends)
            if not had_reason:
                text = "it paused, and no service had been away"
                yield Complaint(wrong=Wrong.STARVED, at_s=stretch.since_s, job=training.plan.name, text=text)
            elif not is_away and stretch.until_s - back_s > PAUSE_S_MAX:
                text = f"it paused for {stretch.until_s - back_s:.0f} s, and no service was away"
                yield Complaint(wrong=Wrong.STARVED, at_s=back_s + PAUSE_S_MAX, job=training.plan.name, text=text)


def retries(history: History) -> Iterator[Complaint]:
    """Complain about a job that is started again and again though its code or data fails it each time."""
    times: Counter[tuple[int, str]] = Counter()
    for showing in history.ledger.showings:
        if history.ledger.records[showing.fault].fault.is_fatal:
            times[showing.fault, showing.job] += 1
            if times[showing.fault, showing.job] == RETRIES_MAX + 1:
                yield Complaint(
                    wrong=Wrong.RETRIED_IN_VAIN, at_s=showing.at_s, job=showing.job, text="it fails at the same step"
                )


def stalls(history: History) -> Iterator[Complaint]:
    """Complain about time in which nothing was decided, and about waiting for machines that are there."""
    needed = sum(plan.nodes for plan in history.scenario.jobs if not plan.stopped_at_h)
    for training in history.cluster.trainings:
        for stretch in training.book.stretches if not training.plan.stopped_at_h else ():
            job, long_s = training.plan.name, stretch.until_s - stretch.since_s
            if stretch.cause == "unnoticed" and long_s > NOTICED_S:
                text = f"no step and no decision for {long_s:.0f} s"
                yield Complaint(wrong=Wrong.UNNOTICED, at_s=stretch.since_s + NOTICED_S, job=job, text=text)
            if stretch.cause in ("waiting_for_machines", "starting") and long_s > STARVED_S:
                at_s = stretch.since_s + STARVED_S
                if _well(history, at_s) >= needed:
                    text = f"it stood for {long_s:.0f} s ({stretch.cause}) while enough machines were well"
                    yield Complaint(wrong=Wrong.STARVED, at_s=at_s, job=job, text=text)


def _well(history: History, at_s: float) -> int:
    ledger = history.ledger
    return sum(
        not ledger.is_at_fault(machine, at_s) and not ledger.was_away(machine, at_s, 60.0)
        for machine in history.cluster.machines
    )


def loops(history: History) -> Iterator[Complaint]:
    if history.cluster.is_cut_short:
        text = f"{len(history.cluster.log)} events in {history.end_s / 86400.0:.1f} days"
        yield Complaint(wrong=Wrong.RESTARTS_WITHOUT_END, at_s=history.end_s, text=text)


def poison(history: History) -> Iterator[Complaint]:
    """Complain about steps that were made long after bad numbers had spoiled them."""
    for training in history.cluster.trainings:
        shown = sum(
            history.ledger.records[it.fault].fault.kind.shows_in_numbers and _training(history, it.job) is training
            for it in history.ledger.showings
        )
        spoiled_s = training.book.spent_s.get("spoiled", 0.0)
        if spoiled_s > SPOILED_S_MAX * shown:
            text = f"{spoiled_s:.0f} s were trained on spoiled states, which arose {shown} times"
            yield Complaint(wrong=Wrong.POISON_SURVIVES, at_s=history.end_s, job=training.plan.name, text=text)


def sacrifices(history: History) -> Iterator[Complaint]:
    """Complain about restarts for slowness that threw away more than slowness could still have cost."""
    for at_s, event in history.of(Eviction):
        training = _training(history, event.job or "")
        faults = [it for it in history.ledger.of_machine(event.node or "", at_s, 60.0) if it.kind.effect == "slow"]
        if training is None or training.plan.keeps != "nothing" or not faults:
            continue
        gain_s = cost_left_s(faults[0], at_s)
        began_s = max((it.until_s for it in training.book.stretches if it.until_s <= at_s), default=at_s)
        thrown_s = at_s - began_s
        if thrown_s > 2.0 * gain_s + 120.0:
            text = f"{thrown_s:.0f} s of training were given up, and slowness would have cost {gain_s:.0f} s more"
            yield Complaint(
                wrong=Wrong.WORK_THROWN_AWAY, at_s=at_s, job=event.job or "", node=event.node or "", text=text
            )


def hasty(history: History) -> Iterator[Complaint]:
    """Complain about restarts for slowness that had cost less than the restart does, and was not going to cost more."""
    for at_s, event in history.of(Eviction):
        training = _training(history, event.job or "")
        faults = list(history.ledger.of_machine(event.node or "", at_s, GRACE_S))
        if training is None or len(faults) != 1 or faults[0].kind.effect != "slow":
            continue
        fault, restart_s = faults[0], training.plan.restart_s
        share = 1.0 - 1.0 / fault.kind.slowdown
        past_s, future_s = share * (at_s - fault.since_s), max(share * SLOW_LASTS_S, cost_left_s(fault, at_s))
        if max(past_s, future_s) < PAYS_SHARE * restart_s:
            text = f"slowness had cost {past_s:.0f} s, and a restart costs {restart_s:.0f} s"
            yield Complaint(
                wrong=Wrong.WORK_THROWN_AWAY, at_s=at_s, job=event.job or "", node=event.node or "", text=text
            )


def waited_out(history: History) -> Iterator[Complaint]:
    """Complain about a slow machine that tests had named and that stayed, though on average its slowness would still
    cost several restarts, and another machine was free.
    """
    for at_s, event in history.of(FailSlowLocated):
        training, job = _training(history, event.job or ""), event.job or ""
        if training is None or training.plan.keeps != "memory" or not event.is_validated or len(event.nodes) != 1:
            continue
        node, late_s = event.nodes[0], at_s + PROMPT_S
        fault = next((it for it in history.ledger.of_machine(node, at_s) if it.kind.effect == "slow"), None)
        if fault is None or fault.culprit != node:
            continue
        if late_s >= min(history.ledger.records[fault.number].ended_s or history.end_s, history.end_s):
            continue
        costs_s = (1.0 - 1.0 / fault.kind.slowdown) * SLOW_LASTS_S
        # After a start something else may have to end first.
        is_busy = any(at_s - SETTLED_S < start.at_s < late_s for start in training.starts)
        if costs_s < RESTARTS_COST * training.plan.restart_s or is_busy:
            continue
        blocked = {
            it.node for since_s, it in history.evictions if since_s <= at_s < history.blocked_until_s(since_s, it)
        }
        if not history.has_free(at_s, 1 + len(blocked)):
            continue
        if not history.left(node, job, at_s, late_s):
            text = (
                f"tests had named it {PROMPT_S:.0f} s before, and slowness like this costs {costs_s:.0f} s on average"
            )
            yield Complaint(wrong=Wrong.SLOW_ONE_STAYS, at_s=late_s, job=job, node=node, text=text)


def _training(history: History, job: str) -> Training | None:
    return next((it for it in history.cluster.trainings if it.plan.name == job.rpartition("-")[0]), None)
