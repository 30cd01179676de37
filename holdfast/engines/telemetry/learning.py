"""Learning of a model from recorded history. Pure.

`MEASURED` and `INCIDENTS` are the queries; rows are read by the names of their columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from holdfast.engines.telemetry import training
from holdfast.engines.telemetry.history import IncidentSpan, cut
from holdfast.engines.telemetry.model import Model, WindowSettings
from holdfast.engines.telemetry.windows import METRICS, Sample
from holdfast.settings.findings.telemetry import TelemetryPolicy

EVENTS_MAX = 200_000
"""Maximum number of events, the newest ones: a day of seventy nodes."""

TESTED_ON = 0.25
"""Share of the healthy windows, the newest ones, that a model is tested on and not learned from."""

SILENT = ("job_hang", "mfu_decline", "fail_slow")
"""Symptoms that metrics can show before any error is reported."""

MEASURED = """
select job, coalesce(generation, 0) as generation, at, body->'ranks' as ranks,
       (body->>'interval_s')::float8 as interval_s from historian.events
where type = 'telemetry_measured' and at >= $1 and ($2::text[] is null or job = any($2))
order by at desc limit $3
"""
INCIDENTS = """
select job, opened_at, coalesce(closed_at, now()) as closed_at, symptom from historian.incidents
where coalesce(closed_at, now()) >= $1
"""


class HistoryRow(Protocol):
    def __getitem__(self, name: str, /) -> Any: ...


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its scores, if there was enough to learn from. `why_not`: why it must not be used; "" if it may."""

    model: Model | None = None
    learned_until: datetime | None = None
    why_not: str = ""


def learn(
    measured: Sequence[HistoryRow], incidents: Sequence[HistoryRow], policy: TelemetryPolicy, made_at: datetime
) -> Learned:
    """Learn a model from the records, and test it on the newest part of them."""
    intervals = Counter(row["interval_s"] for row in measured)
    interval_s = intervals.most_common(1)[0][0] if intervals else policy.every_s
    measured = [row for row in measured if row["interval_s"] == interval_s]
    until = max((row["at"] for row in measured), default=None)
    settings = WindowSettings(interval_s=interval_s, window=policy.window, length=policy.length)

    def slot(at: datetime) -> int:
        return int(at.timestamp() // interval_s)

    samples = (
        (row["job"], row["generation"], Sample(rank["rank"], slot(row["at"]), tuple(map(rank.get, METRICS))))
        for row in measured
        for rank in row["ranks"]
    )
    troubles = [
        IncidentSpan(row["job"], slot(row["opened_at"]), slot(row["closed_at"]), row["symptom"] in SILENT)
        for row in incidents
    ]
    recorded = cut(samples, troubles, settings, policy.level_after)
    known = round(len(recorded.healthy) * (1.0 - TESTED_ON))
    jobs = sorted({row["job"] for row in measured})
    try:
        model = training.train(recorded.healthy[:known], settings, f"{made_at:%Y%m%d-%H%M%S}", made_at, jobs)
    except training.NothingToLearn as error:
        return Learned(learned_until=until, why_not=str(error))
    scores = training.evaluate(model, recorded.healthy[known:], recorded.troubled)
    why = training.why_discarded(scores)
    return Learned(
        model=msgspec.structs.replace(model, scores=scores),
        learned_until=until,
        why_not=f"version {model.version} is discarded: {why}" if why else "",
    )
