"""Racks whose nodes fail more often than chance has it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.engines.record.racks import RackFinding, suspect_racks
from holdfast.settings.decisions.record import RecordPolicy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RecordPolicy()


def failed(nodes: Iterable[int], rack: str, *, of: int = 256, in_rack: int = 8, **fields: Any) -> list[NodeRecord]:
    """Return records of nodes that failed once in a job of `of` nodes."""
    fields = {"at": NOW, "kind": MarkKind.CRASH, "job": "job", "nodes": of, "rack_nodes": in_rack, **fields}
    return [NodeRecord(node=f"{rack}-{number}", marks=(Mark(rack=rack, **fields),)) for number in nodes]


def racks(records: list[NodeRecord]) -> list[str]:
    return [found.rack for found in suspect_racks(records, NOW + timedelta(hours=1), POLICY)]


def test_three_of_five_failures_in_one_of_32_racks_are_no_chance() -> None:
    records = failed(range(3), "r1") + failed([0], "r2") + failed([0], "r3")
    (found,) = suspect_racks(records, NOW, POLICY)
    assert (found.rack, found.failed, found.expected) == ("r1", 3, pytest.approx(5 / 32))
    # 32 racks, and the binomial distribution of five failures.
    assert found.chance == pytest.approx(32 * 2.9e-4, rel=0.05)
    assert "3 nodes of rack r1 have failed within 5 days" in found.in_words(POLICY)


def test_two_nodes_or_a_rack_that_has_most_of_the_job_show_nothing() -> None:
    assert racks(failed(range(2), "r1")) == []
    assert racks(failed(range(6), "r1", of=8, in_rack=7) + failed([0], "r2", of=8, in_rack=1)) == []


@pytest.mark.parametrize("fields", [{"kind": MarkKind.LOST}, {"struck": "shared"}, {"at": NOW - timedelta(days=9)}])
def test_silence_what_is_explained_and_what_is_old_do_not_count(fields: dict[str, Any]) -> None:
    assert racks(failed(range(6), "r1")) == ["r1"] and racks(failed(range(6), "r1", **fields)) == []


def test_one_node_counts_once_however_often_it_fails() -> None:
    (lemon,) = failed([0], "r1")
    assert racks([NodeRecord(node="lemon", marks=lemon.marks * 9)]) == []


def test_jobs_add_up() -> None:
    records = [it for job in ("a", "b", "c") for it in failed([ord(job)], "r1", job=job)]
    assert racks(records) == ["r1"]


def test_failures_anywhere_accuse_a_rack_in_few_cases() -> None:
    """Of 300 fleets of 32 racks with 40 failures each, three may be accused wrongly at one percent."""
    wrong: list[RackFinding] = []
    for seed in range(300):
        chances = Random(seed)
        places = {divmod(place, 8) for place in chances.sample(range(256), 40)}
        records = [it for rack, number in sorted(places) for it in failed([number], f"r{rack}")]
        wrong += suspect_racks(records, NOW, POLICY)
    assert len(wrong) <= 3
