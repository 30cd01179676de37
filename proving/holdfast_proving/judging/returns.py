"""Judges of what is remembered: machines that are known to be broken stay away, and no job is stopped to find one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.engines.checks.warm_up import PATHS
from holdfast.events import (
    ChecksStarted,
    DiagnosticResult,
    Eviction,
    EvictionRevoked,
    FailSlowLocated,
    GenerationStarted,
    SuspectsTested,
)
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History
from holdfast_proving.scenario.last_words import ACCUSING
from holdfast_proving.scenario.scenario import ABSENCES
from holdfast_proving.truth.faults import Fault
from holdfast_proving.truth.generator import DAY_S, HOUR_S
from holdfast_proving.truth.ledger import Showing

KNOWN_S = 30.0
"""What is older is known to the process that grants a node."""
JUST_TESTED_S = 600.0
"""The decision after stop-time checks falls within this time."""
FAILED_TEST_S = 12 * HOUR_S
"""A machine that failed a test joins no job within this time."""
EVICTED_TWICE_S = 36 * HOUR_S
"""A machine that jobs lost twice for the same fault joins none within this time: a day was too short."""
SLOW_REMEMBERED_S = 20 * DAY_S
ALONE_S = 5 * DAY_S
LARGE = 16
"""In a job of so many nodes two crashes of one machine, and none of another one, are no chance."""
PLAIN = ("segfault", "bus_error")
"""Ends that accuse no machine by what they print."""
JUST_NOW_S = 60.0


def failed_tests(history: History) -> Iterator[Complaint]:
    """Complain about nodes that were granted to a training, or stay in it, though their last test had failed."""
    failed: dict[str, float] = {}
    for at_s, event in history.cluster.log:
        if isinstance(event, DiagnosticResult) and event.node and not event.peers and event.test != PATHS:
            if event.status == "failed":
                failed[event.node] = at_s
            elif event.test == "gemm":
                failed.pop(event.node, None)
        elif isinstance(event, GenerationStarted) and event.job in history.trainings:
            joined = history.joined(at_s, event)
            for node in failed.keys() & frozenset(event.nodes):
                since_s, is_new = failed[node], node in joined
                if not at_s - since_s < FAILED_TEST_S or not history.ledger.is_at_fault(node, at_s):
                    continue
                if is_new and at_s - since_s > KNOWN_S:
                    yield _returns(at_s, event, node, f"it failed a test {at_s - since_s:.0f} s ago")
                elif not is_new and at_s - since_s < JUST_TESTED_S:
                    text = f"it failed a test {at_s - since_s:.0f} s ago, and the job started again with it"
                    yield Complaint(wrong=Wrong.CULPRIT_STAYS, at_s=at_s, job=event.job or "", node=node, text=text)


def repeated_offenders(history: History) -> Iterator[Complaint]:
    """Complain about nodes that are back soon after they left jobs for the second time for one fault."""
    left: dict[tuple[str, int], list[float]] = defaultdict(list)
    for at_s, event in history.cluster.log:
        if isinstance(event, Eviction) and event.blocked_for_s and not history.is_revoked(at_s, event):
            for fault in _own(history, event.node or "", at_s):
                left[event.node or "", fault.number].append(at_s)
        elif isinstance(event, GenerationStarted) and event.job in history.trainings:
            for node in history.joined(at_s, event):
                for fault in _own(history, node, at_s):
                    times = left[node, fault.number]
                    if len(times) > 1 and at_s - times[-1] < EVICTED_TWICE_S and not _was_released(history, node, at_s):
                        text = f"it was evicted {len(times)} times for {fault.kind.name}, {at_s - times[-1]:.0f} s ago"
                        yield _returns(at_s, event, node, text)


def missed_twice(history: History) -> Iterator[Complaint]:
    """Complain about nodes of large jobs that come back since they passed tests which had missed their fault before."""
    passed: Counter[tuple[str, int]] = Counter()
    shown = {(it.fault, it.job): it.at_s for it in reversed(history.ledger.showings)}
    for at_s, event in history.of(EvictionRevoked):
        node, job = event.node or "", event.job or ""
        if len(history.members(job, at_s)) < LARGE:
            continue
        for fault in _own(history, node, at_s):
            if shown.get((fault.number, job), at_s) < at_s and fault.kind.prints in PLAIN:
                passed[node, fault.number] += 1
                if passed[node, fault.number] == 2:
                    text = f"it passed tests once more, which had missed {fault.kind.name} before"
                    yield Complaint(wrong=Wrong.CULPRIT_RETURNS, at_s=at_s, job=job, node=node, text=text)


def slow_again(history: History) -> Iterator[Complaint]:
    """Complain about machines that tests had found slow, that slow a job down from its start, and that stay."""
    allowed_s = 3.0 * LadderPolicy().slow_cost_max_s
    proved = [
        (at_s, suspect.node)
        for at_s, event in history.of(SuspectsTested)
        for suspect in event.at_fault
        if suspect.symptom == Symptom.MFU_DECLINE
    ]
    located = [(at_s, event) for at_s, event in history.of(FailSlowLocated)]
    for showing in history.ledger.showings if proved else ():
        record = history.ledger.records[showing.fault]
        kind, node = record.fault.kind, showing.machine
        if kind.effect != "slow" or record.fault.culprit != node or showing.job in history.without_checkpoints:
            continue
        late_s = showing.at_s + max(600.0, allowed_s / (1.0 - 1.0 / kind.slowdown))
        was_proved = any(of == node and 0.0 < showing.at_s - at_s < SLOW_REMEMBERED_S for at_s, of in proved)
        is_over = late_s >= min(record.ended_s or history.end_s, history.end_s)
        is_named = any(
            (it.job, it.generation) == (showing.job, showing.generation) and (it.nodes or it.one_of or it.links)
            for _, it in located
        )
        if not was_proved or is_over or is_named or not _is_from_the_start(history, showing):
            continue
        if history.has_free(late_s) and not history.left(node, showing.job, showing.at_s, late_s):
            text = f"tests had found it slow, and it slows the job down by {kind.slowdown:g} from its start"
            yield Complaint(wrong=Wrong.SLOW_ONE_STAYS, at_s=late_s, job=showing.job, node=node, text=text)


def needless_tests(history: History) -> Iterator[Complaint]:
    """Complain about large jobs that stood for tests of all machines, though one had failed them alone and before."""
    for at_s, event in history.of(ChecksStarted):
        if event.job not in history.trainings or len(event.nodes) < LARGE:
            continue
        crashes = [
            it
            for it in history.ledger.showings
            if it.job == event.job and 0.0 <= at_s - it.at_s < ALONE_S and _effect(history, it) in ("crash", "hang")
        ]
        kinds = {history.ledger.records[it.fault].fault.kind.prints for it in crashes}
        faults = {it.fault for it in crashes}
        is_just_now = bool(crashes) and at_s - crashes[-1].at_s < JUST_NOW_S
        if len(faults) != 1 or not kinds <= set(PLAIN) or not is_just_now:
            continue
        culprit = history.ledger.records[crashes[-1].fault].fault.culprit
        if culprit and len({it.generation for it in crashes}) > 1 and history.has_free(at_s):
            text = f"it crashed the job {len(crashes)} times, and no other machine did"
            wrong = Wrong.STOOD_FOR_TESTS
            yield Complaint(wrong=wrong, at_s=at_s, job=event.job or "", node=culprit, text=text)


def tests_for_accusations(history: History) -> Iterator[Complaint]:
    """Complain about jobs that stood for tests of all machines, though a rank had just named its own, for the first
    time, and two others were free."""
    for at_s, event in history.of(ChecksStarted):
        shown = [it for it in history.ledger.showings if it.job == event.job and it.at_s <= at_s]
        is_first = bool(shown) and sum(at_s - it.at_s < ALONE_S for it in shown) == 1
        if event.job not in history.trainings or not is_first or at_s - shown[-1].at_s > JUST_NOW_S:
            continue
        fault = history.ledger.records[shown[-1].fault].fault
        if fault.culprit and fault.kind.prints in ACCUSING and history.has_free(at_s, count=2):
            text = f"its rank had named it, and {fault.kind.name} is no fault of the others"
            wrong = Wrong.STOOD_FOR_TESTS
            yield Complaint(wrong=wrong, at_s=at_s, job=event.job or "", node=fault.culprit, text=text)


def _own(history: History, node: str, at_s: float) -> Iterator[Fault]:
    """Return the lasting faults of a node that are held against it for long."""
    for fault in history.ledger.of_machine(node, at_s):
        kind = fault.kind
        if fault.culprit == node and kind.effect not in (*ABSENCES, "slow") and kind.warm_up != "paths":
            yield fault


def _was_released(history: History, node: str, at_s: float) -> bool:
    """Return True if a person took it off the blocklist."""
    return any(it.machine == node and it.at_h * HOUR_S < at_s for it in history.scenario.releases)


def _is_from_the_start(history: History, showing: Showing) -> bool:
    """Return True if the fault showed with the first step of its run, and no other one slows that run down."""
    of_run = [
        it
        for it in history.ledger.showings
        if (it.job, it.generation) == (showing.job, showing.generation) and _effect(history, it) == "slow"
    ]
    starts = (start for training in history.cluster.trainings for start in training.starts)
    began_s = next(it.at_s for it in starts if (it.job, it.generation) == (showing.job, showing.generation))
    return len(of_run) == 1 and showing.at_s == began_s


def _effect(history: History, showing: Showing) -> str:
    return history.ledger.records[showing.fault].fault.kind.effect


def _returns(at_s: float, event: GenerationStarted, node: str, text: str) -> Complaint:
    text = f"{text}, and joined the job with the same fault"
    return Complaint(wrong=Wrong.CULPRIT_RETURNS, at_s=at_s, job=event.job or "", node=node, text=text)
