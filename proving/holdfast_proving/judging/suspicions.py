"""Innocent machines that left to be tested, since a process or rank of their own had accused them just then.

That is no wrong eviction: a machine at fault looks the same, another one takes its place, and tests bring it back. It
is one if the machine comes back untested, if no other machine was free, or if one of the same job left for such a
reason within a day and had nothing either: an accusation that was wrong once is no better on another machine.
"""

from __future__ import annotations

from holdfast.events import DiagnosticResult, Eviction, HangFound
from holdfast_proving.judging.history import GRACE_S, History
from holdfast_proving.scenario.last_words import ACCUSING
from holdfast_proving.truth.generator import DAY_S

ACCUSED_S = 120.0
"""An accusation that is older is no reason to leave."""


def is_tested_suspicion(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if an innocent node left to be tested, and its job may have that."""
    return (
        _is_suspicion(history, at_s, event)
        and history.has_free(at_s)
        and (not history.is_back(at_s, event) or _passed(history, at_s, event))
        and not any(_is_suspicion(history, since_s, other) for since_s, other in _earlier(history, at_s, event))
    )


def cleared(history: History) -> int:
    """Return how many innocent nodes left for such a suspicion, and came back since they passed tests."""
    return sum(
        not history.was_at_fault(event.job, event.node or "", at_s)
        and not history.ledger.was_away(event.node or "", at_s, GRACE_S)
        and history.is_back(at_s, event)
        and not history.is_kept_out(at_s, event)
        and is_tested_suspicion(history, at_s, event)
        for at_s, event in history.evictions
    )


def _is_suspicion(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if an innocent node left alone, and its own process or rank had accused it just then."""
    return (
        event.together == (event.node,)
        and (_hangs_itself(history, at_s, event) or _has_accused_itself(history, at_s, event))
        and not history.was_at_fault(event.job, event.node or "", at_s)
    )


def _earlier(history: History, at_s: float, event: Eviction) -> list[tuple[float, Eviction]]:
    """Return the evictions of the same job in the day before this one; of those of one moment, the ones before it."""
    found = []
    for since_s, other in history.evictions:
        if other is event:
            break
        if other.job == event.job and at_s - since_s < DAY_S:
            found.append((since_s, other))
    return found


def _passed(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if the node passed a test between its eviction and its return, and failed none."""
    until_s = history.blocked_until_s(at_s, event)
    results = [
        test.status
        for since_s, test in history.of(DiagnosticResult)
        if test.node == event.node and at_s <= since_s <= until_s
    ]
    return "passed" in results and "failed" not in results


def _hangs_itself(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if a process on the node was stuck when its job hung."""
    return any(
        found.is_machine and found.job == event.job and event.node in found.nodes
        for since_s, found in history.of(HangFound)
        if 0.0 <= at_s - since_s < ACCUSED_S
    )


def _has_accused_itself(history: History, at_s: float, event: Eviction) -> bool:
    """Return True if a rank on the node had printed that its machine is broken."""
    return any(
        (it.machine, it.job) == (event.node, event.job)
        and history.ledger.records[it.fault].fault.kind.prints in ACCUSING
        for it in history.ledger.showings
        if 0.0 <= at_s - it.at_s < ACCUSED_S
    )
