"""What the judges of the simulation hold against machines that come back."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from holdfast.events import DiagnosticResult, GenerationStarted
from holdfast.fresh_ids import uuid7
from holdfast_proving.judging.returns import FAILED_TEST_S, failed_tests

AT = datetime(2026, 1, 1, tzinfo=UTC)


def history_of(*log: tuple[float, Any]) -> Any:
    return SimpleNamespace(
        cluster=SimpleNamespace(log=log),
        trainings={"job": None},
        joined=lambda at_s, event: event.nodes,
        ledger=SimpleNamespace(is_at_fault=lambda node, at_s: True),
    )


def failed(at_s: float) -> tuple[float, DiagnosticResult]:
    result = DiagnosticResult(
        id=uuid7(), at=AT, source="t", node="a", job="job", generation=1, run="r", test="gemm", status="failed"
    )
    return at_s, result


def started(at_s: float) -> tuple[float, GenerationStarted]:
    return at_s, GenerationStarted(
        id=uuid7(), at=AT, source="t", job="job", generation=2, nodes=("a",), world_size=2, reason=""
    )


def test_the_last_failed_test_of_a_machine_counts() -> None:
    late = FAILED_TEST_S + 3600
    (complaint,) = failed_tests(history_of(failed(0.0), failed(late), started(late + 60)))
    assert "60 s ago" in complaint.text
    assert not list(failed_tests(history_of(failed(0.0), started(late))))
