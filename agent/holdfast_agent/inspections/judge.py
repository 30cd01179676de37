"""Decisions on a reading: alerts, cleared alerts, and checks that cannot read. Pure.

    healthy ──trouble, `misses` readings in a row──▶ raised ──a reading without it──▶ cleared
    └── unreadable ──▶ still raised: no reading is no recovery

A `tolerate` alert is repeated at each reading while it lasts, so that consumers can count how long it stayed. An
`evict` alert is repeated now and then, because a node may be put back to work with its fault. A hint is reported once.
Momentary troubles are reported each time, except in bursts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from holdfast_agent.inspections.check import Check, Confidence, Reading, Scope, Trouble

SIGHT = "sight"
"""Kind of reports about a check itself or a device: it is unreadable, or readable again."""

TIMES_MAX = 3
LINES_MAX = 20
LINE_CHARS_MAX = 1000
DETAIL_CHARS_MAX = 2000

_RANK: dict[Confidence, int] = {"hint": 0, "tolerate": 1, "evict": 2}

Key = tuple[str, str]


class InspectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """An `Inspection` event without id, time and node."""

    check: str
    state: Literal["alert", "cleared", "broken"]
    confidence: Confidence
    symptom: str
    scope: Scope
    device: str
    kind: str
    is_momentary: bool = False
    detail: str = ""
    lines: tuple[str, ...] = ()
    shared: str = ""


class LastingTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A trouble of the last reading: its number of consecutive readings, and the time of its last report."""

    trouble: Trouble
    readings: int = 1
    reported_at: datetime | None = None


class CheckState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one check: lasting troubles by device and kind, unreadable devices, recent momentary troubles, and
    certain faults, whose repair no later reading can show.
    """

    lasting: dict[Key, LastingTrouble] = {}
    unread: dict[str, str] = {}
    happened: dict[Key, tuple[datetime, Confidence]] = {}
    struck: dict[Key, Trouble] = {}

    @property
    def raised(self) -> tuple[Trouble, ...]:
        """The reported troubles that last."""
        return tuple(lasting.trouble for lasting in self.lasting.values() if lasting.reported_at is not None)


def judge(
    check: Check, state: CheckState, reading: Reading, now: datetime, again_s: float
) -> tuple[CheckState, tuple[InspectionReport, ...]]:
    """Return the reports that follow from this reading, and the next state."""
    reports: list[InspectionReport] = []
    troubles = merged(check, reading.troubles)
    lasting: dict[Key, LastingTrouble] = {}
    struck = dict(state.struck)
    happened = {key: one for key, one in state.happened.items() if now - one[0] < timedelta(seconds=check.quiet_s)}
    for key, trouble in troubles.items():
        if trouble.is_momentary:
            confidence = confidence_of(check, trouble)
            if confidence == "evict":
                struck[key] = trouble
            if key in happened and _RANK[happened[key][1]] >= _RANK[confidence]:
                continue
            happened[key] = now, confidence
            times = 1 if check.quiet_s else min(trouble.times, TIMES_MAX)
            reports += [_report(check, "alert", trouble)] * times
            continue
        before = state.lasting.get(key)
        stays = LastingTrouble(
            trouble=trouble,
            readings=before.readings + 1 if before else 1,
            reported_at=before.reported_at if before else None,
        )
        if stays.readings >= check.misses and _is_due(check, trouble, before, now, again_s):
            reports.append(_report(check, "alert", trouble))
            stays = msgspec.structs.replace(stays, reported_at=now)
        lasting[key] = stays
    for key, before in state.lasting.items():
        if key in lasting:
            continue
        if _is_unread(key[0], reading) or _is_early(check, before, now):
            lasting[key] = before
        elif before.reported_at is not None:
            reports.append(_report(check, "cleared", before.trouble))
    for device, why in reading.unread.items():
        if device not in state.unread:
            reports.append(_sight_report(check, "broken", device, why))
    for device in state.unread:
        if device not in reading.unread:
            reports.append(_sight_report(check, "cleared", device, "it is readable again"))
    return CheckState(lasting=lasting, unread=dict(reading.unread), happened=happened, struck=struck), tuple(reports)


def confidence_of(check: Check, trouble: Trouble) -> Confidence:
    return trouble.confidence or check.confidence


def merged(check: Check, troubles: tuple[Trouble, ...]) -> dict[Key, Trouble]:
    """Merge troubles of equal device and kind into the one of the highest confidence, with all their lines."""
    merged: dict[Key, Trouble] = {}
    for trouble in troubles:
        key = trouble.device, trouble.kind
        if first := merged.get(key):
            worst = max(first, trouble, key=lambda one: _RANK[confidence_of(check, one)])
            lines, times = first.lines + trouble.lines, first.times + trouble.times
            trouble = msgspec.structs.replace(worst, lines=lines, times=times)
        merged[key] = trouble
    return merged


def _is_due(check: Check, trouble: Trouble, before: LastingTrouble | None, now: datetime, again_s: float) -> bool:
    if before is None or before.reported_at is None:
        return True
    confidence = confidence_of(check, trouble)
    if confidence != confidence_of(check, before.trouble):
        return True
    pause_s = {"tolerate": check.interval_s, "evict": again_s}.get(confidence)
    return pause_s is not None and (now - before.reported_at).total_seconds() >= pause_s - _early_s(check)


def _is_early(check: Check, before: LastingTrouble, now: datetime) -> bool:
    """Return True if an alert is too new to be cleared: read more often, it would count several times as it comes and
    goes."""
    if check.slow_interval_s is None or before.reported_at is None:
        return False
    return (now - before.reported_at).total_seconds() < check.interval_s - _early_s(check)


def _early_s(check: Check) -> float:
    """Return a tolerance, because readings come slightly early or late."""
    return min(1.0, check.interval_s / 2)


def _is_unread(device: str, reading: Reading) -> bool:
    return bool(reading.absent) or device in reading.unread or "" in reading.unread


def _report(check: Check, state: Literal["alert", "cleared"], trouble: Trouble) -> InspectionReport:
    return InspectionReport(
        check=check.name,
        state=state,
        confidence=confidence_of(check, trouble),
        symptom=str(check.symptom if trouble.symptom is None else trouble.symptom),
        scope=trouble.scope or check.scope,
        device=trouble.device,
        kind=trouble.kind,
        is_momentary=trouble.is_momentary,
        detail=trouble.detail[:DETAIL_CHARS_MAX],
        lines=tuple(line[:LINE_CHARS_MAX] for line in trouble.lines[:LINES_MAX]),
        shared=trouble.shared[:DETAIL_CHARS_MAX],
    )


def _sight_report(check: Check, state: Literal["broken", "cleared"], device: str, detail: str) -> InspectionReport:
    return InspectionReport(
        check=check.name,
        state=state,
        confidence="hint",
        symptom="",
        scope=check.scope,
        device=device,
        kind=SIGHT,
        detail=detail[:DETAIL_CHARS_MAX],
    )
