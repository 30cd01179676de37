"""Judges of warnings: alerts and words of ranks that were right, and what was done about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.events import GenerationStarted, Inspection
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History
from holdfast_proving.scenario.last_words import ACCUSING

ANSWERED_S = 300.0
REPEATED = 3
"""Alerts of one check and device within the window after which a node at fault has to leave."""
WINDOW_S = LadderPolicy().alerts_window_s
KNOWN_S = 30.0
"""An alert that is older than this is known where nodes are granted."""


def certain(history: History) -> Iterator[Complaint]:
    """Complain about alerts that were right and certain, and whose node stayed though another could replace it."""
    for at_s, event in _right(history):
        if event.confidence == "evict" and history.has_free(at_s):
            yield from _stayed(history, at_s, event, f"{event.check} found it")


def repeated(history: History) -> Iterator[Complaint]:
    """Complain about alerts that may pass, of a fault that hinders the job, which came again and again in vain."""
    hindered: dict[int, float] = {}
    for showing in history.ledger.showings:
        hindered.setdefault(showing.fault, showing.at_s)
    seen: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for at_s, event in _right(history):
        faults = history.ledger.of_machine(event.node or "", at_s)
        # A job that trains well loses nothing by a fault that only its alerts show, or has shown so far.
        if event.confidence != "tolerate" or not any(hindered.get(it.number, at_s) < at_s for it in faults):
            continue
        times = seen[event.node or "", event.check, event.device]
        times[:] = [*(it for it in times if at_s - it < WINDOW_S), at_s]
        if len(times) == REPEATED:
            yield from _stayed(history, at_s, event, f"{event.check} found it {REPEATED} times")


def _right(history: History) -> Iterator[tuple[float, Inspection]]:
    """Return the alerts of machines that were at fault."""
    for at_s, event in history.of(Inspection):
        if event.state == "alert" and history.ledger.is_at_fault(event.node or "", at_s):
            yield at_s, event


def _stayed(history: History, at_s: float, event: Inspection, text: str) -> Iterator[Complaint]:
    node, late_s = event.node or "", at_s + ANSWERED_S
    for job in history.jobs_at(at_s):
        was_member = node in history.members(job, at_s)
        if was_member and late_s < history.end_s and not history.left(node, job, at_s - 60.0, late_s):
            yield Complaint(wrong=Wrong.ALERT_IGNORED, at_s=late_s, job=job, node=node, text=text)


def before_crashes(history: History) -> Iterator[Complaint]:
    """Complain about machines that had their alert, then crashed the job first hand, and crash it again."""
    warned: dict[int, float] = {}
    for at_s, event in _right(history):
        for fault in history.ledger.of_machine(event.node or "", at_s):
            plan = fault.kind.alert
            if plan is not None and event.confidence == plan.confidence == "tolerate" and plan.check == event.check:
                warned.setdefault(fault.number, at_s)
    crashes: dict[tuple[int, str], int] = defaultdict(int)
    for showing in history.ledger.showings:
        fault = history.ledger.records[showing.fault].fault
        is_crash = fault.kind.effect == "crash" and fault.culprit is not None and fault.kind.prints != "peer"
        since_s = warned.get(showing.fault)
        if not is_crash or since_s is None or since_s > showing.at_s:
            continue
        crashes[showing.fault, showing.job] += 1
        if crashes[showing.fault, showing.job] == 2:
            text = f"its alert came before the crash, and it crashed again by {fault.kind.name}"
            node = fault.culprit or ""
            yield Complaint(wrong=Wrong.ALERT_IGNORED, at_s=showing.at_s, job=showing.job, node=node, text=text)


def accused(history: History) -> Iterator[Complaint]:
    """Complain about machines that their ranks had accused, and that tests would have found, if they crash again."""
    last: dict[tuple[int, str], float] = {}
    for showing in history.ledger.showings:
        fault, at_s, job = history.ledger.records[showing.fault].fault, showing.at_s, showing.job
        is_plain = fault.kind.effect == "crash" and fault.kind.prints in ACCUSING and fault.kind.found_by_checks == 1.0
        if not is_plain or fault.culprit is None:
            continue
        since_s = last.get((showing.fault, job))
        last[showing.fault, job] = at_s
        if since_s is not None and not history.left(fault.culprit, job, since_s, at_s):
            text = f"its rank had named it, tests would have found it, and it crashed again by {fault.kind.name}"
            yield Complaint(wrong=Wrong.ALERT_IGNORED, at_s=at_s, job=job, node=fault.culprit, text=text)


def of_newcomers(history: History) -> Iterator[Complaint]:
    """Complain about nodes that were granted though an alert proved a fault of theirs."""
    raised: dict[str, float] = {}
    members: dict[str, frozenset[str]] = {}
    for at_s, event in history.cluster.log:
        if isinstance(event, Inspection) and event.confidence == "evict" and not event.is_momentary:
            if event.state == "alert":
                raised.setdefault(event.node or "", at_s)
            else:
                raised.pop(event.node or "", None)
        elif isinstance(event, GenerationStarted):
            job, nodes = event.job or "", frozenset(event.nodes)
            for node in sorted(nodes - members.get(job, frozenset())):
                is_known = at_s - raised.get(node, at_s) > KNOWN_S
                if is_known and history.ledger.is_at_fault(node, at_s):
                    text = "it joined the job though an alert had proved its fault"
                    yield Complaint(wrong=Wrong.ALERT_IGNORED, at_s=at_s, job=job, node=node, text=text)
            members[job] = nodes
