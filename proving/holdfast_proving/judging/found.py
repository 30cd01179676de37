"""Judges of findings: each fault is found in time, for what it is, and nothing is found where nothing is wrong.

They judge the production analyzer. The findings of its model are those of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.events import (
    BadNumber,
    ChecksStarted,
    Event,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    GenerationStarted,
    HangFound,
    IncidentOpened,
    JobFinished,
    TelemetryAnomaly,
)
from holdfast.symptoms import Symptom
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import E, History
from holdfast_proving.scenario.forms import HIDDEN
from holdfast_proving.truth.faults import Fault
from holdfast_proving.truth.ledger import Showing
from holdfast_proving.world.training import Training

HANG_S, HANG_STEPS = 150.0, 15
"""Time in which a hang is found: a start may take a while, and limits follow the step time."""
SLOW_S, SLOW_STEPS, DECLINE_STEPS = 60.0, 30, 150
"""Time in which a slow machine is located; a run that is slow from the first steps on is compared with earlier ones."""
EARLY_S, EARLY_STEPS = 30.0, 25
SLOWDOWN_MIN = 1.3
NUMBER_STEPS = 14
SURE = 0.7
"""Confidence of a finding from which a single machine counts as named (`[hang] evict_confidence_min`)."""
IDLE = "kernel stuck"
"""Form of a hang in which one device is idle, and all others run a kernel that waits."""
RELIEF_S = 120.0
DRIFT_S = 300.0
OF_SLOWNESS = (Symptom.FAIL_SLOW, Symptom.MFU_DECLINE)


def hangs(history: History) -> Iterator[Complaint]:
    """Complain about hangs that are not found, and about those that are found of the wrong machine."""
    for showing, fault, training in _showings(history, "hang"):
        late_s = showing.at_s + HANG_S + HANG_STEPS * training.plan.step_s
        found = _first(history, HangFound, showing)
        if found is None or found[0] > late_s:
            if late_s < _over_s(history, showing):
                text = f"no progress since {showing.at_s:.0f} s ({fault.kind.form or fault.kind.name})"
                yield _complaint(Wrong.HANG_UNFOUND, late_s, showing, text)
            continue
        at_s, event = found
        is_named = event.is_machine or (len(event.nodes) == 1 and event.confidence >= SURE)
        if is_named and fault.kind.place == "machine" and showing.machine not in event.nodes:
            text = f"{', '.join(event.nodes)} for a hang of {showing.machine}: {event.summary}"
            yield _complaint(Wrong.INNOCENT_NAMED, at_s, showing, text)


def devices(history: History) -> Iterator[Complaint]:
    """Complain about machines whose device started no kernel while those of all others ran one, which tests would have
    confirmed, and that hang the same job once more."""
    known: set[tuple[int, str]] = set()
    for showing, fault, _ in _showings(history, "hang"):
        if fault.culprit is None or fault.kind.form != IDLE or fault.kind.found_by_checks < 1.0:
            continue
        if (fault.number, showing.job) in known:
            text = f"its device had stood out, and it hangs the job again ({fault.kind.name})"
            yield _complaint(Wrong.ALERT_IGNORED, showing.at_s, showing, text)
        known.add((fault.number, showing.job))


def slowness(history: History) -> Iterator[Complaint]:
    """Complain about slow machines that are not located, or for which tests name another one."""
    for showing, fault, training in _showings(history, "slow"):
        if fault.culprit is None or fault.kind.form == HIDDEN:
            continue
        steps = DECLINE_STEPS if _is_early(history, showing, training) else SLOW_STEPS
        late_s = showing.at_s + SLOW_S + steps * training.plan.step_s * fault.kind.slowdown
        ended_s = history.ledger.records[fault.number].ended_s or history.end_s
        right = [
            at_s
            for at_s, event in _all(history, FailSlowLocated, showing)
            if fault.culprit in _suspects(event) and at_s <= late_s
        ]
        if not right and fault.kind.slowdown >= SLOWDOWN_MIN and late_s < min(ended_s, _over_s(history, showing)):
            text = f"{fault.culprit} makes each step {fault.kind.slowdown:g} times as long"
            yield _complaint(Wrong.SLOW_ONE_UNFOUND, late_s, showing, text)


def innocents(history: History) -> Iterator[Complaint]:
    """Complain about machines that tests name as slow, and that are not."""
    for at_s, event in history.of(FailSlowLocated):
        for node in event.nodes if event.is_validated else ():
            if not _is_slow(history, node, at_s):
                text = f"{node} for slowness: {event.summary}"
                yield Complaint(wrong=Wrong.INNOCENT_NAMED, at_s=at_s, job=event.job or "", node=node, text=text)


def cleared(history: History) -> Iterator[Complaint]:
    """Complain about tests that clear a suspect which is slow, and would show it."""
    for at_s, event in history.of(FailSlowLocated):
        if not event.is_validated or event.nodes or event.links:
            continue
        for showing, fault, _ in _showings(history, "slow"):
            ended_s = history.ledger.records[fault.number].ended_s or history.end_s
            is_present = showing.at_s <= at_s - event.took_s and at_s < ended_s and fault.kind.form != HIDDEN
            of_run = (showing.job, showing.generation) == (event.job, event.generation)
            if of_run and is_present and fault.culprit in event.suspects and fault.kind.slowdown >= SLOWDOWN_MIN:
                text = f"{fault.culprit} makes each step {fault.kind.slowdown:g} times as long: {event.summary}"
                yield _complaint(Wrong.CULPRIT_CLEARED, at_s, showing, text)


def relief(history: History) -> Iterator[Complaint]:
    """Complain about machines that were replaced for a slowness that was over."""
    for_slowness = {it.incident for _, it in history.of(IncidentOpened) if it.symptom in OF_SLOWNESS}
    for at_s, event in history.evictions:
        nodes = event.together or (event.node or "",)
        if event.incident in for_slowness and not any(_is_slow(history, node, at_s) for node in nodes):
            text = f"it was slow no longer: {event.reason}"
            wrong = Wrong.WORK_THROWN_AWAY
            yield Complaint(wrong=wrong, at_s=at_s, job=event.job or "", node=event.node or "", text=text)


def passed_slowness(history: History) -> Iterator[Complaint]:
    """Complain about slowness that was found, ended, and still counts in the same run."""
    for showing, fault, training in _showings(history, "slow"):
        ended_s = history.ledger.records[fault.number].ended_s
        if ended_s is None or not any(at_s < ended_s for at_s, _ in _all(history, FailSlowOnset, showing)):
            continue
        late_s = ended_s + SLOW_S + SLOW_STEPS * training.plan.step_s
        if late_s > _over_s(history, showing) or _is_slowed_otherwise(history, showing, ended_s, late_s):
            continue
        if not any(showing.at_s < at_s <= late_s for at_s, _ in _all(history, FailSlowRelieved, showing)):
            text = f"{fault.kind.name} was over at {ended_s:.0f} s"
            yield _complaint(Wrong.RELIEF_UNFOUND, late_s, showing, text)


def _is_slowed_otherwise(history: History, showing: Showing, since_s: float, until_s: float) -> bool:
    """Return True if another fault slows the same run in this time."""
    for other, fault, _ in _showings(history, "slow"):
        is_of_run = (other.job, other.generation) == (showing.job, showing.generation)
        ended_s = history.ledger.records[fault.number].ended_s or history.end_s
        if is_of_run and other.fault != showing.fault and other.at_s <= until_s and ended_s >= since_s:
            return True
    return False


def _is_slow(history: History, node: str, at_s: float) -> bool:
    """Return True if a machine is slow, or was a moment ago."""
    return any(it.kind.effect == "slow" for it in history.ledger.of_machine(node, at_s, RELIEF_S))


def bad_numbers(history: History) -> Iterator[Complaint]:
    """Complain about bad numbers that are found late, at the wrong step, or with a certificate for spoiled steps."""
    for showing, fault, training in _showings(history, "bad_numbers"):
        if fault.kind.is_false or fault.kind.is_silent:
            continue
        steps = NUMBER_STEPS + fault.kind.shows_after_steps
        late_s = showing.at_s + steps * training.plan.step_s + 5.0
        found = _first(history, BadNumber, showing)
        if found is None or found[0] > late_s:
            if late_s < _over_s(history, showing):
                yield _complaint(Wrong.NUMBERS_MISJUDGED, late_s, showing, f"wrong from step {showing.step} on")
            continue
        at_s, event = found
        if event.step != showing.step + fault.kind.shows_after_steps or (event.certified or 0) >= showing.step:
            text = f"step {event.step}, and {event.certified} certified; wrong from step {showing.step} on"
            yield _complaint(Wrong.NUMBERS_MISJUDGED, at_s, showing, text)


def drift(history: History) -> Iterator[Complaint]:
    """Complain about machines whose use of resources drifts, and which no anomaly names."""
    for showing, fault, _ in _showings(history, "drift"):
        late_s = showing.at_s + DRIFT_S
        anomalies = _all(history, TelemetryAnomaly, showing)
        if any(showing.machine in event.nodes and at_s <= late_s for at_s, event in anomalies):
            continue
        if late_s < min(history.ledger.records[fault.number].ended_s or history.end_s, _over_s(history, showing)):
            yield _complaint(Wrong.DRIFT_UNFOUND, late_s, showing, "what its ranks use drifts away from the others")


def false_alarms(history: History) -> Iterator[Complaint]:
    """Complain about findings where nothing is wrong."""
    effects = {HangFound: "hang", BadNumber: "bad_numbers", FailSlowLocated: "slow"}
    shown: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for showing in history.ledger.showings:
        fault = history.ledger.records[showing.fault].fault
        if not fault.kind.is_false:
            shown.setdefault((fault.kind.effect, showing.job), []).append((showing.at_s, showing.generation))
    for at_s, event in _findings(history):
        known = shown.get((effects[type(event)], event.job or ""), [])
        of_run = type(event) is HangFound
        if not any(since_s <= at_s and (not of_run or generation == event.generation) for since_s, generation in known):
            text = f"{event.type}, and nothing was wrong"
            yield Complaint(wrong=Wrong.FALSE_ALARM, at_s=at_s, job=event.job or "", text=text)


def _findings(history: History) -> Iterator[tuple[float, Event]]:
    yield from history.of(HangFound)
    yield from history.of(BadNumber)
    yield from ((at_s, event) for at_s, event in history.of(FailSlowLocated) if _suspects(event))


def _suspects(event: FailSlowLocated) -> set[str]:
    return {*event.nodes, *event.one_of, *(end for link in event.links for end in link)}


def _is_early(history: History, showing: Showing, training: Training) -> bool:
    """Return True if a fault showed before its run could have a level of its own."""
    plan = training.plan
    run = (showing.job, showing.generation)
    started_s = next(at_s for at_s, it in history.of(GenerationStarted) if (it.job, it.generation) == run)
    until_s = plan.fork_s + plan.first_step_s + EARLY_S + EARLY_STEPS * plan.step_s
    return showing.at_s - started_s < until_s


def _showings(history: History, effect: str) -> Iterator[tuple[Showing, Fault, Training]]:
    for showing in history.ledger.showings:
        fault = history.ledger.records[showing.fault].fault
        training = next(
            (it for it in history.cluster.trainings if it.plan.name == showing.job.rpartition("-")[0]), None
        )
        if fault.kind.effect == effect and training is not None:
            yield showing, fault, training


def _all(history: History, kind: type[E], showing: Showing) -> Iterator[tuple[float, E]]:
    return (
        (at_s, event)
        for at_s, event in history.of(kind)
        if (event.job, event.generation) == (showing.job, showing.generation) and at_s >= showing.at_s
    )


def _first(history: History, kind: type[E], showing: Showing) -> tuple[float, E] | None:
    return next(_all(history, kind, showing), None)


def _over_s(history: History, showing: Showing) -> float:
    """Return when the run in which a fault showed was over."""
    return min(
        (
            at_s
            for kind in (GenerationStarted, ChecksStarted, JobFinished)
            for at_s, event in history.of(kind)
            if event.job == showing.job and at_s > showing.at_s
        ),
        default=history.end_s,
    )


def _complaint(wrong: Wrong, at_s: float, showing: Showing, text: str) -> Complaint:
    return Complaint(wrong=wrong, at_s=at_s, job=showing.job, node=showing.machine, text=text)
