"""Judges of blame: who is at fault leaves, and nobody else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.events import DiagnosticResult, Eviction, FailSlowLocated, GenerationStarted
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import BACK_WITHIN_S, GRACE_S, History
from holdfast_proving.judging.suspicions import is_tested_suspicion
from holdfast_proving.scenario.scenario import ABSENCES
from holdfast_proving.truth.generator import DAY_S, HOUR_S

GUESSED_S = 120.0
"""A guess about the ends of a broken connection follows the test within this time."""
SHOWINGS_MAX = 3
"""Times that one fault may stop a job before its machine is gone: the second is checked, the third evicts."""
TRAINS_ON_S = 0.5 * HOUR_S
"""A machine that fails its job less often costs less than to wait for another one."""
AT_ONCE_S = 30.0
STORM_S = HOUR_S
KEPT_OUT_S_MAX = 3 * DAY_S
"""A machine that was at fault and is repaired is off the blocklist within this time."""


def innocents(history: History) -> Iterator[Complaint]:
    """Complain about evictions of nodes that were not at fault."""
    for at_s, event in history.evictions:
        if history.was_at_fault(event.job, event.node or "", at_s):
            yield from _kept_out(history, at_s, event)
        elif history.ledger.was_away(event.node or "", at_s, GRACE_S):
            yield from _still_blocked(history, at_s, event)
        elif is_tested_suspicion(history, at_s, event):
            if (kept := _kept_too_long(history, at_s, event)) is not None:
                yield Complaint(wrong=kept, at_s=at_s, job=event.job or "", node=event.node or "", text=event.reason)
        elif (wrong := _wrong(history, at_s, event)) is not None:
            yield Complaint(wrong=wrong, at_s=at_s, job=event.job or "", node=event.node or "", text=event.reason)


def _kept_out(history: History, at_s: float, event: Eviction) -> Iterator[Complaint]:
    """Complain if a machine that was rightly evicted is blocked long after its repair."""
    node = event.node or ""
    numbers = [fault.number for fault in history.ledger.of_machine(node, at_s, GRACE_S) if fault.culprit == node]
    ended = [history.ledger.records[number].ended_s for number in numbers]
    back_s = max((at_s if it is None else it for it in ended), default=at_s)
    if None not in ended and history.blocked_until_s(at_s, event) > max(at_s, back_s) + KEPT_OUT_S_MAX:
        text = f"it is blocked for {event.blocked_for_s / DAY_S:.0f} days, and well since {back_s:.0f} s"
        yield Complaint(wrong=Wrong.BLOCKED_THOUGH_BACK, at_s=at_s, job=event.job or "", node=node, text=text)


def _wrong(history: History, at_s: float, event: Eviction) -> Wrong | None:
    """Return what is wrong with the eviction of a node that is not at fault."""
    ledger = history.ledger
    is_named = event.node in history.named(event.job, at_s)
    if is_named and any(history.was_at_fault(event.job, other, at_s) for other in event.together):
        return _kept_too_long(history, at_s, event)
    if is_named and event.together and _is_first_guess(history, at_s, event):
        return _kept_too_long(history, at_s, event)
    return Wrong.BLAMED_FOR_SHARED if ledger.shared(event.node or "", at_s, GRACE_S) else Wrong.INNOCENT_EVICTED


def _kept_too_long(history: History, at_s: float, event: Eviction) -> Wrong | None:
    return Wrong.INNOCENT_KEPT_OUT if history.is_kept_out(at_s, event) else None


def _is_first_guess(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if the other end of a broken connection is at fault, and its job has not guessed about it before."""
    culprits = _other_ends(history, at_s, event)
    earlier = (
        culprits & _other_ends(history, since_s, other)
        for since_s, other in history.evictions
        if other.job == event.job and since_s < at_s and other.node not in culprits
    )
    return bool(culprits) and not any(earlier)


def _other_ends(history: History, at_s: float, event: Eviction) -> frozenset[str]:
    """Return the nodes at fault that failed a test with this node alone shortly before its eviction."""
    tests = (
        frozenset((test.node or "", *test.peers)) - {event.node or ""}
        for since_s, test in history.of(DiagnosticResult)
        if test.status == "failed" and 0.0 <= at_s - since_s < GUESSED_S and event.node in (test.node, *test.peers)
    )
    return frozenset(other for others in tests for other in others if history.was_at_fault(event.job, other, at_s))


def _still_blocked(history: History, at_s: float, event: Eviction) -> Iterator[Complaint]:
    """Complain if a machine that lost its power through no fault of its own is blocked long after it came back."""
    node = event.node or ""
    records = [
        history.ledger.records[fault.number]
        for fault in history.ledger.of_machine(node, at_s, GRACE_S)
        if fault.kind.effect in ABSENCES
    ]
    back_s = max((record.ended_s or float("inf") for record in records), default=at_s)
    late_s = max(back_s, at_s) + BACK_WITHIN_S
    if late_s < min(history.blocked_until_s(at_s, event), history.end_s):
        yield Complaint(wrong=Wrong.BLOCKED_THOUGH_BACK, at_s=late_s, job=event.job or "", node=node, text=event.reason)


def storms(history: History) -> Iterator[Complaint]:
    """Complain about more evictions of innocent nodes of one job within an hour than its breaker should allow."""
    by_job: dict[str, list[float]] = defaultdict(list)
    for complaint in innocents(history):
        if complaint.wrong in (Wrong.INNOCENT_EVICTED, Wrong.BLAMED_FOR_SHARED):
            by_job[complaint.job].append(complaint.at_s)
    for job, times in by_job.items():
        nodes = len(history.members(job, times[0]))
        allowed = max(3, int(0.2 * nodes))
        for first, last in zip(times, times[allowed:], strict=False):
            if last - first < STORM_S:
                text = f"{allowed + 1} innocent nodes of {nodes} were evicted within an hour"
                yield Complaint(wrong=Wrong.STORM_OF_BLAME, at_s=last, job=job, text=text)
                break


def exchanges(history: History) -> Iterator[Complaint]:
    """Complain about nodes that left a job without being evicted, lost or shut down."""
    for it in history.departures:
        is_away = history.was_gone(it) or history.ledger.was_away(it.node, it.until_s)
        if not history.was_evicted(it) and not is_away:
            is_bad = history.ledger.is_at_fault(it.node, it.until_s)
            text = "it is at fault, and free for the next job" if is_bad else "nothing was wrong with it"
            yield Complaint(wrong=Wrong.EXCHANGED, at_s=it.until_s, job=it.job, node=it.node, text=text)


def culprits(history: History) -> Iterator[Complaint]:
    """Complain about faults that stop one job again and again, though another machine was free the time before."""
    for (number, job), stops in _stops(history).items():
        times = list(stops.values())
        for count in range(SHOWINGS_MAX, len(times)):
            if not _could_be_replaced(history, number, times[count - 1]):
                continue
            fault = history.ledger.records[number].fault
            yield Complaint(
                wrong=Wrong.CULPRIT_STAYS,
                at_s=times[count],
                job=job,
                node=fault.culprit or "",
                text=f"its fault {fault.kind.name} stopped the job for the {count + 1}th time",
            )
            break


def _could_be_replaced(history: History, number: int, at_s: float) -> bool:
    """Return True unless the job can train on with the machine for long, and no other one was free."""
    kind = history.ledger.records[number].fault.kind
    return kind.again_h * HOUR_S < TRAINS_ON_S or history.standbys(at_s) > 0


def unreplaced(history: History) -> Iterator[Complaint]:
    """Complain about machines that left a job which trains with them for long, though no other one was free."""
    failed = {(it.node, it.job) for _, it in history.of(DiagnosticResult) if it.status == "failed"}
    started = [(at_s, it.job) for at_s, it in history.of(GenerationStarted)]
    for (number, job), stops in _stops(history).items():
        kind, node = history.ledger.records[number].fault.kind, history.ledger.records[number].fault.culprit
        trains_on = kind.lasts == "repair" and kind.again_h * HOUR_S >= TRAINS_ON_S
        if not trains_on or kind.effect != "crash" or kind.alert or (node, job) in failed:
            continue
        for at_s in stops.values():
            is_same_incident = any(of == job and 0.0 < at_s - since_s < TRAINS_ON_S for since_s, of in started)
            left = any(
                (it.node, it.job) == (node, job) and 0.0 <= since_s - at_s < AT_ONCE_S
                for since_s, it in history.evictions
            )
            if left and not (is_same_incident or history.standbys(at_s)):
                text = f"it fails every {kind.again_h:g} h, and no machine was free in its place"
                yield Complaint(wrong=Wrong.LEFT_UNREPLACED, at_s=at_s, job=job, node=node or "", text=text)


def incidents_of_culprits(history: History) -> Counter[int]:
    """Return how many faults of machines that last until their repair stopped a job once, twice and so on."""
    records = history.ledger.records
    lasting = (times for (number, _), times in _stops(history).items() if records[number].fault.kind.lasts == "repair")
    return Counter(len(times) for times in lasting)


def _stops(history: History) -> dict[tuple[int, str], dict[int, float]]:
    """Return by fault and job when a machine's own fault stopped which generation first."""
    times: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    for showing in history.ledger.showings:
        fault = history.ledger.records[showing.fault].fault
        if fault.culprit is None or fault.kind.is_silent or fault.kind.effect not in ("crash", "hang", "bad_numbers"):
            continue
        times[showing.fault, showing.job].setdefault(showing.generation, showing.at_s)
    return times


def hot_ones(history: History) -> Iterator[Complaint]:
    """Complain about the one machine with a reason to be slow, which stayed though its job was slow."""
    allowed_s = 3.0 * LadderPolicy().slow_cost_max_s
    for showing in history.ledger.showings:
        record = history.ledger.records[showing.fault]
        kind, alert = record.fault.kind, record.fault.kind.alert
        if kind.effect != "slow" or alert is None or alert.symptom != Symptom.MFU_DECLINE or alert.chance < 1.0:
            continue
        late_s = showing.at_s + max(600.0, allowed_s / (1.0 - 1.0 / kind.slowdown))
        is_over = late_s >= min(record.ended_s or history.end_s, history.end_s)
        if is_over or showing.job in history.without_checkpoints or kind.is_false:
            continue
        if not history.left(showing.machine, showing.job, showing.at_s, late_s):
            text = f"an alert shows why it slows the job down by {kind.slowdown:g}"
            yield Complaint(wrong=Wrong.SLOW_ONE_STAYS, at_s=late_s, job=showing.job, node=showing.machine, text=text)


def slow_ones(history: History) -> Iterator[Complaint]:
    """Complain about machines that were rightly named for slowness, and stayed until they had cost far too much."""
    allowed_s = 3.0 * LadderPolicy().slow_cost_max_s
    for at_s, event in history.of(FailSlowLocated):
        named = event.nodes or event.one_of
        for node in named:
            of_machine = history.ledger.of_machine(node, at_s)
            faults = [it for it in of_machine if it.kind.effect == "slow" and it.culprit == node]
            if not faults or event.job in history.without_checkpoints:
                continue
            late_s = at_s + max(600.0, allowed_s / (1.0 - 1.0 / faults[0].kind.slowdown))
            ended_s = history.ledger.records[faults[0].number].ended_s or history.end_s
            if late_s < min(ended_s, history.end_s) and not history.left(node, event.job or "", at_s, late_s):
                text = f"it has slowed the job down by {faults[0].kind.slowdown:g} for {late_s - at_s:.0f} s"
                yield Complaint(wrong=Wrong.SLOW_ONE_STAYS, at_s=late_s, job=event.job or "", node=node, text=text)
