"""Records of all nodes, found by node and by job, and changes on top of them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.engines.record.chance import elsewhere
from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.engines.record.node_records import NodeRecords

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(node: str, *jobs: str, kind: MarkKind = MarkKind.CRASH, **fields: Any) -> NodeRecord:
    return NodeRecord(node=node, marks=tuple(Mark(at=NOW, kind=kind, job=job, **fields) for job in jobs))


def names(found: list[NodeRecord]) -> list[str]:
    return [it.node for it in found]


def test_nodes_are_found_by_the_jobs_in_which_they_failed() -> None:
    lost = record("c", "one", kind=MarkKind.LOST)
    records = NodeRecords({"b": record("b", "one", "two"), "a": record("a", "one"), "c": lost})
    assert names(records.of_jobs({"one"})) == ["a", "b"] and names(records.of_jobs({"two", "three"})) == ["b"]
    records["b"] = record("b", "three")
    del records["a"]
    assert not records.of_jobs({"one", "two"}) and names(records.of_jobs({"three"})) == ["b"]


def test_changes_lie_on_top_and_leave_what_is_below_as_it_is() -> None:
    below = NodeRecords({"a": record("a", "one"), "b": record("b", "one")})
    above = NodeRecords(on_top_of=below)
    above["a"], above["c"] = record("a", "two"), record("c", "one")
    assert (sorted(above), len(above), len(below)) == (["a", "b", "c"], 3, 2)
    assert names(list(above.changes())) == ["a", "c"] and below["a"].marks[0].job == "one"
    assert above["a"].marks[0].job == "two" and names(above.of_jobs({"two"})) == ["a"]
    assert names(above.of_jobs({"one"})) == ["b", "c"]
    with pytest.raises(KeyError):
        above["d"]


def test_evictions_that_rest_on_what_ranks_did_are_found_until_they_prove_right_or_wrong() -> None:
    evicted = record("a", "one", kind=MarkKind.EVICTED, is_accusation=True)
    records = NodeRecords({"a": evicted, "b": record("b", "one", kind=MarkKind.EVICTED)})
    assert [(it.node, mark.kind) for it, mark in records.accused_by("one")] == [("a", MarkKind.EVICTED)]
    records["a"] = evicted.with_mark(Mark(at=NOW, kind=MarkKind.CLEARED, job="one"))
    assert not records.accused_by("one")


@pytest.mark.parametrize("size", [10, 10_000])
def test_what_happened_elsewhere_costs_the_same_at_any_number_of_records(size: int) -> None:
    others = {f"n{number}": record(f"n{number}", "another") for number in range(size)}
    records = NodeRecords(others | {"b": record("b", "one")})
    calls = 0

    def count(_: Any, what: str, __: Any) -> None:
        nonlocal calls
        calls += what == "call"

    sys.setprofile(count)
    try:
        around = elsewhere(record("a", "one"), records)
    finally:
        sys.setprofile(None)
    assert len(around.failures) == 1 and calls < 100
