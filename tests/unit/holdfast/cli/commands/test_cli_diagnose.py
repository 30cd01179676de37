"""What `holdfast diagnose` prints of a run, and which nodes it takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.cli.commands.diagnosis.diagnose import _chosen, _Node, _report
from holdfast.cli.follow.checks_run import ChecksNotRun, ChecksOutcome
from holdfast.engines.checks.checks_verdict import judge_checks
from holdfast.events import DiagnosticResult
from holdfast.fresh_ids import uuid7

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = {
    "a": _Node(key="a", state="standby", job=None, reason="warm"),
    "b": _Node(key="b", state="active", job="train-1", reason="granted"),
    "c": _Node(key="c", state="evicted", job=None, reason="failed twice"),
    "d": _Node(key="d", state="lost", job=None, reason="nothing was heard of it for 6.0 s"),
}


def result(node: str, test: str, status: str = "passed", **fields: Any) -> DiagnosticResult:
    common: dict[str, Any] = {"id": uuid7(), "at": NOW, "source": f"agent/{node}", "run": "r"}
    return DiagnosticResult(**common, node=node, test=test, status=status, **fields)  # type: ignore[arg-type]


def outcome(nodes: tuple[str, ...], *results: DiagnosticResult, **fields: Any) -> ChecksOutcome:
    return ChecksOutcome(
        job="j", suite="quick", nodes=nodes, results=results, verdict=judge_checks(nodes, results), **fields
    )


def test_a_table_has_a_row_for_each_node_and_the_verdict_below() -> None:
    told = outcome(
        ("a", "c", "e"),
        result("a", "disk", value=100.0, unit="MB/s"),
        result("a", "all_gather", round=1, peers=("c",), value=2.0, unit="GB/s"),
        result("a", "all_gather", round=2, peers=("e",), value=1.0, unit="GB/s"),
        result("c", "disk", "failed", symptom="disk_fault", detail="/data: \x1b[31mInput/output error"),
        result("e", "disk", "broken", detail="KeyError: 1"),
        result("e", "all_gather", "skipped"),
        result("a", "end"),
    )
    lines = _report(told).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["NODE", "DISK", "ALL", "GATHER"],
        ["a", "passed,", "100", "MB/s", "passed,", "1", "GB/s"],
        ["c", "failed", "-"],
        ["e", "broken", "skipped"],
    ]
    assert lines[5:] == [
        r"c is at fault (disk_fault): disk failed: /data: \x1b[31mInput/output error",
        "e: disk is broken, which is no fault of the node: KeyError: 1",
        "not tested: e",
        "passed: a",
    ]
    assert told.exit_code == 1


def test_the_exit_code_tells_whether_all_passed() -> None:
    assert outcome(("a",), result("a", "disk")).exit_code == 0
    assert outcome(("a", "c"), result("a", "disk")).exit_code == 1
    assert outcome(("a",), result("a", "disk"), interrupted=True).exit_code == 130


def test_without_names_the_idle_nodes_are_taken() -> None:
    assert _chosen((), KNOWN) == ("a",)
    with pytest.raises(ChecksNotRun, match="no node is idle"):
        _chosen((), {"b": KNOWN["b"]})


def test_a_node_on_the_blocklist_may_be_named() -> None:
    assert _chosen(("c", "a"), KNOWN) == ("c", "a")


@pytest.mark.parametrize(
    ("name", "why"),
    [("b", "b is used by job train-1"), ("d", "d is lost: nothing was heard of it"), ("x", "there is no node x")],
)
def test_a_node_that_cannot_be_had_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ChecksNotRun, match=why) as refused:
        _chosen(("a", name), KNOWN)
    assert refused.value.exit_code == 2
