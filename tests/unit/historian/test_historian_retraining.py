"""When a model of telemetry is learned anew: with something new to learn from, and not at every start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast_historian.retraining_plan import TrainingRecord, is_due

NOW = datetime(2026, 1, 10, tzinfo=UTC)
POLICY = TelemetryPolicy()


def ago(**spans: float) -> datetime:
    return NOW - timedelta(**spans)


@pytest.mark.parametrize(
    ("last", "newest", "due"),
    [
        (None, None, False),
        (None, ago(seconds=5), True),
        (TrainingRecord(at=ago(hours=23), learned_until=ago(hours=23), is_used=True), ago(seconds=5), False),
        (TrainingRecord(at=ago(hours=25), learned_until=ago(hours=25), is_used=True), ago(seconds=5), True),
        (TrainingRecord(at=ago(hours=25), learned_until=ago(hours=26), is_used=True), ago(hours=26), False),
        # Nothing came of it: there is more to learn from soon.
        (TrainingRecord(at=ago(minutes=30), learned_until=ago(minutes=31)), ago(seconds=5), False),
        (TrainingRecord(at=ago(hours=2), learned_until=ago(hours=2)), ago(seconds=5), True),
        (TrainingRecord(at=ago(hours=2), learned_until=ago(hours=3)), ago(hours=3), False),
        (TrainingRecord(at=ago(hours=2)), ago(seconds=5), True),
    ],
)
def test_a_model_is_learned_when_it_is_time_and_there_is_something_new(
    last: TrainingRecord | None, newest: datetime | None, due: bool
) -> None:
    assert is_due(last, newest, NOW, POLICY) is due
    assert not is_due(last, newest, NOW, TelemetryPolicy(retrain_every_s=0))


def test_a_short_interval_is_obeyed() -> None:
    last = TrainingRecord(at=ago(seconds=90), learned_until=ago(seconds=90))
    assert is_due(last, ago(seconds=5), NOW, TelemetryPolicy(retrain_every_s=60))
