"""Findings in the record of a node that fails: nothing, a reason to check it, or a reason to evict it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.engines.record.chance import chance_of, elsewhere, log_odds, present_chance
from holdfast.engines.record.history import SURE, Mark, MarkKind, NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.settings.decisions.record import RecordPolicy
from holdfast.symptoms import Symptom

FAILURES_MIN = 2
"""Number of failures from which a record counts: the first one alone is answered by a restart in place."""
AVOIDED_MAX = 100
"""Maximum number of nodes that a claim avoids; the worst."""
EVIDENCE_MAX = 8
REMEMBERED_HALF_LIVES = 4
"""Half-lives of evidence after which an earlier eviction does not lengthen the next one, nor explains slowness."""


class RecordFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion from a node's record when the node fails."""

    chance: float
    """Chance that the machine has a lasting fault."""
    calls_for_checks: bool
    calls_for_exchange: bool
    """True if it is reason enough to test the node beside training, if another one can take its place."""
    calls_for_eviction: bool
    was_checked: bool
    """True if checks have lately found nothing wrong with it."""
    was_cleared: bool
    """True if an eviction of it has lately proved wrong, as it passed tests perhaps."""
    was_missed: bool
    """True if tests have lately passed it, and passing once more would leave enough to evict it."""
    is_only_killed: bool
    """True if all that happened there is that processes were killed, which no test finds the reason of."""
    is_sure: bool
    """True if a recent entry points to the machine that no script can forge."""
    is_accused_alone: bool
    """True if its ranks printed lately and repeatedly that its hardware is broken, and those of no other node did."""
    text: str
    evidence: tuple[str, ...]
    """Ids of the events that it rests on."""


def finding(record: NodeRecord, records: NodeRecords, now: datetime, policy: RecordPolicy) -> RecordFinding | None:
    """Return the finding in the record, which contains the present failure; None if there is none."""
    failures = [mark for mark in record.marks if mark.counts]
    if len(failures) < FAILURES_MIN:
        return None
    around = elsewhere(record, records)
    odds = log_odds(record, around, now, policy)
    since = now - timedelta(days=policy.half_life_days)
    passed = next((it for it in reversed(record.marks) if it.kind is MarkKind.CHECKS_PASSED and it.at > since), None)
    before = None
    if passed is not None:
        until = msgspec.structs.replace(record, marks=tuple(it for it in record.marks if it.at <= passed.at))
        before = log_odds(until, around, passed.at, policy)
    # Checks that find nothing lower the odds. They are repeated once further failures have raised them by as much.
    is_news = before is None or odds >= before - math.log(policy.missed_by_checks)
    chance = chance_of(odds)
    was_tested = any(
        mark.kind in (MarkKind.CHECKS_PASSED, MarkKind.CLEARED) and mark.at > since for mark in record.marks
    )
    printed = sum(mark.kind is MarkKind.HARDWARE and mark.at > since for mark in failures)
    can_break = any(mark.kind is not MarkKind.KILLED for mark in failures)
    return RecordFinding(
        chance=chance,
        calls_for_checks=chance >= policy.check_min and is_news,
        calls_for_exchange=chance >= policy.exchange_min and (is_news or not can_break),
        calls_for_eviction=chance >= policy.evict_min and can_break,
        was_checked=passed is not None,
        was_cleared=any(mark.kind is MarkKind.CLEARED and mark.at > since for mark in record.marks),
        was_missed=was_tested and chance_of(odds + math.log(policy.missed_by_checks)) >= policy.evict_min,
        is_only_killed=not can_break,
        is_sure=any(mark.kind in SURE and mark.at > since and not mark.struck for mark in record.marks),
        is_accused_alone=not around.accusations and printed >= FAILURES_MIN,
        text=_describe(record.node, failures, chance, now),
        evidence=tuple(mark.event for mark in failures if mark.event)[-EVIDENCE_MAX:],
    )


def avoided(records: Iterable[NodeRecord], now: datetime, policy: RecordPolicy) -> tuple[str, ...]:
    """Return the nodes that a job should get only if no others are free, the worst first."""
    chances = ((present_chance(record, now, policy), record.node) for record in records)
    worst = sorted(((-chance, node) for chance, node in chances if chance >= policy.avoid_min))
    return tuple(node for _, node in worst[:AVOIDED_MAX])


def earlier_evictions(record: NodeRecord, now: datetime, policy: RecordPolicy) -> int:
    """Return how often the node was lately evicted, since a person released it and unless that proved wrong.

    Slowness does not count: it passes by itself more often than not.
    """
    count = 0
    for mark in record.marks:
        if mark.symptom == Symptom.MFU_DECLINE:
            continue
        match mark.kind:
            case MarkKind.EVICTED if now - mark.at < timedelta(days=REMEMBERED_HALF_LIVES * policy.half_life_days):
                count += 1
            case MarkKind.CLEARED:
                count = max(0, count - 1)
            case MarkKind.RELEASED:
                count = 0
            case _:
                pass
    return count


def proven_slowness(record: NodeRecord, now: datetime, policy: RecordPolicy) -> Mark | None:
    """Return the newest test that found the node slow, unless it passed one since, or a person released it."""
    for mark in reversed(record.marks):
        if now - mark.at >= timedelta(days=REMEMBERED_HALF_LIVES * policy.half_life_days):
            return None
        if mark.kind is MarkKind.CONFIRMED and mark.symptom == Symptom.MFU_DECLINE:
            return mark
        if mark.kind in (MarkKind.CLEARED, MarkKind.RELEASED):
            return None
    return None


def _describe(node: str, failures: list[Mark], chance: float, now: datetime) -> str:
    since_s = (now - failures[0].at).total_seconds()
    since = f"{since_s:.0f} s" if since_s < 600 else f"{since_s / 3600:.1f} h"
    others = len({mark.job for mark in failures}) - 1
    where = f", in {others + 1} jobs" if others else ""
    return (
        f"{node} has failed {len(failures)} times without an explanation within {since}{where}: "
        f"by its record the chance of a lasting fault is {chance:.0%}"
    )
