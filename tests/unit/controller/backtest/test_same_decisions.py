"""Decisions are the same to the letter, but for times that the record lacks: a restart's end emits no event."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.events import Eviction
from holdfast.fresh_ids import uuid7
from holdfast_controller.backtest.lockstep import same

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLOW = "n makes the job slow: an iteration takes 0.102 s instead of 0.074 s; more than a restart: {}, and step 21000"


def _because(reason: str) -> list[Eviction]:
    return [Eviction(id=uuid7(), at=NOW, source="controller", node="n", job="j", reason=reason, blocked_for_s=60.0)]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (SLOW.format("0.672 s"), SLOW.format("0.67 s"), True),
        (SLOW.format("1.23e+03 s"), SLOW.format("1.24e+03 s"), True),
        (SLOW.format("0.672 s"), SLOW.format("1.9 s"), False),
        (SLOW.format("90 s"), SLOW.format("120 s"), False),
        ("from step 21000", "from step 21001", False),
        ("3 nodes in 5 s", "2 nodes in 5 s", False),
        ("in 5 s", "in 5 s and 1 s", False),
    ],
)
def test_durations_in_a_reason_may_be_a_little_apart(one: str, other: str, is_same: bool) -> None:
    assert same(_because(one), _because(other)) is is_same
