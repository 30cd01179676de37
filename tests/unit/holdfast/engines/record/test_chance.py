"""The chance that a machine has a lasting fault, by its record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest

from holdfast.engines.record.chance import NOTHING_ELSEWHERE, Elsewhere, chance_of, elsewhere, log_odds
from holdfast.engines.record.history import MARKS_MAX, Mark, MarkKind, NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.settings.decisions.record import RecordPolicy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
POLICY = RecordPolicy()


def record(*kinds: MarkKind, nodes: int = 8, every: timedelta = HOUR, node: str = "x") -> NodeRecord:
    made = NodeRecord(node=node)
    for number, kind in enumerate(kinds):
        made = made.with_mark(Mark(at=NOW + number * every, kind=kind, job="job", generation=number, nodes=nodes))
    return made


def chance(of: NodeRecord, around: Elsewhere = NOTHING_ELSEWHERE, later: timedelta = timedelta(0)) -> float:
    return chance_of(log_odds(of, around, (of.as_of or NOW) + later, POLICY))


def test_nothing_known_is_the_prior() -> None:
    assert chance(record()) == pytest.approx(POLICY.prior)


@pytest.mark.parametrize("kind", [MarkKind.LOST, MarkKind.EXPLAINED, MarkKind.EVICTED])
def test_silence_and_explained_failures_never_count(kind: MarkKind) -> None:
    assert chance(record(*[kind] * MARKS_MAX)) == pytest.approx(POLICY.prior)


@pytest.mark.parametrize("kind", [MarkKind.HARDWARE, MarkKind.CRASH])
def test_the_second_failure_is_checked_and_the_third_evicts(kind: MarkKind) -> None:
    once, twice = chance(record(kind)), chance(record(kind, kind))
    assert once == pytest.approx(POLICY.after_one) and once < POLICY.check_min <= twice
    assert chance(record(kind, kind, MarkKind.CHECKS_PASSED)) < POLICY.evict_min
    assert chance(record(kind, kind, MarkKind.CHECKS_PASSED, kind)) >= POLICY.evict_min


def test_failures_in_a_small_job_count_less_against_a_node() -> None:
    of_two, of_many = (chance(record(*[MarkKind.CRASH] * 3, nodes=nodes)) for nodes in (2, 1000))
    assert of_two < POLICY.evict_min < of_many
    assert chance(record(*[MarkKind.CRASH] * 20, nodes=1)) == pytest.approx(POLICY.after_one, abs=0.001)


def test_kills_are_checked_and_never_evict() -> None:
    assert POLICY.check_min < chance(record(*[MarkKind.KILLED] * 30, nodes=2)) < POLICY.evict_min
    assert chance(record(*[MarkKind.KILLED] * 30, nodes=1000)) < POLICY.evict_min
    assert chance(record(MarkKind.CRASH, *[MarkKind.KILLED] * 30)) < POLICY.evict_min
    assert chance(record(*[MarkKind.KILLED] * 2, nodes=1000)) < POLICY.check_min


def test_checks_that_pass_again_do_not_count() -> None:
    crash, passed = MarkKind.CRASH, MarkKind.CHECKS_PASSED
    once = chance(record(crash, crash, passed, every=timedelta(0)))
    assert once < chance(record(crash, crash, every=timedelta(0)))
    assert chance(record(crash, crash, passed, passed, every=timedelta(0))) == once


def test_an_eviction_that_proved_wrong_or_right_counts() -> None:
    crash = MarkKind.CRASH
    plain = chance(record(crash, crash))
    assert chance(record(crash, crash, MarkKind.CLEARED)) < plain < chance(record(crash, crash, MarkKind.CONFIRMED))
    assert chance(record(*[crash] * 6, MarkKind.RELEASED)) == pytest.approx(POLICY.after_one)


def test_it_decays_to_the_prior() -> None:
    twice = record(MarkKind.HARDWARE, MarkKind.HARDWARE)
    assert chance(twice) > chance(twice, later=5 * DAY) > chance(twice, later=30 * DAY)
    assert chance(twice, later=100 * DAY) == pytest.approx(POLICY.prior, rel=0.01)


def test_a_struck_mark_does_not_count() -> None:
    twice = record(MarkKind.CRASH, MarkKind.CRASH)
    struck = msgspec.structs.replace(twice.marks[0], struck="the job's own")
    assert chance(twice.replacing(twice.marks[0], struck)) == pytest.approx(POLICY.after_one)


def test_hardware_that_several_nodes_report_may_be_printed_by_the_job() -> None:
    of_two = record(*[MarkKind.HARDWARE] * 2, nodes=2)
    assert chance(of_two, Elsewhere(accusations=(NOW,))) < 0.1 < chance(of_two)


def test_failures_elsewhere_are_those_of_the_same_job_until_another_machine_is_evicted_for_them() -> None:
    crash, own = MarkKind.CRASH, record(MarkKind.CRASH)
    same = record(crash, crash, node="same")
    other = msgspec.structs.replace(same, node="other", marks=(msgspec.structs.replace(same.marks[0], job="another"),))
    evicted = record(crash, crash, MarkKind.EVICTED, node="evicted")
    cleared = record(crash, MarkKind.EVICTED, MarkKind.CLEARED, node="cleared")
    records = NodeRecords({it.node: it for it in (own, same, other, evicted, cleared)})
    assert len(elsewhere(own, records).failures) == 3


def _evicted(seed: int, nodes: int, per_day: float, days: int) -> int:
    """Return how many nodes a job that crashes on any of its nodes would lose to their records."""
    chances, now, end = Random(seed), NOW, NOW + days * DAY
    records = NodeRecords()
    lost = set()
    while (now := now + chances.expovariate(per_day) * DAY) < end:
        node = f"n{chances.randrange(nodes)}"
        mark = Mark(at=now, kind=MarkKind.CRASH, job="job", generation=1, nodes=nodes)
        records[node] = known = records.get(node, NodeRecord(node=node)).with_mark(mark)
        if chance_of(log_odds(known, elsewhere(known, records), now, POLICY)) >= POLICY.evict_min:
            lost.add(node)
    return len(lost)


def test_a_job_of_a_thousand_nodes_that_crashes_anywhere_has_one_of_them_tested_a_month() -> None:
    """Of 600 crashes two are by chance on one machine: it leaves for the minute that its test takes."""
    assert sum(_evicted(seed, 1000, 20.0, 30) for seed in range(3)) <= 3


@pytest.mark.parametrize("nodes", [2, 8, 32])
def test_jobs_that_crash_anywhere_lose_no_node_before_checks_pass_it(nodes: int) -> None:
    """Of fifty jobs one may: so often three crashes of eight nodes in a row are by chance on one of them."""
    assert sum(_evicted(seed, nodes, 10.0, 7) for seed in range(50)) <= FALSE_MAX[nodes]


FALSE_MAX = {2: 3, 8: 3, 32: 3}


def test_one_bad_machine_of_a_job_that_also_crashes_elsewhere_is_found() -> None:
    records = NodeRecords()
    times: Sequence[str] = ("x", "x", "y", "x", "x", "z", "x", "x")
    found = 0.0
    for number, node in enumerate(times):
        at = NOW + number * HOUR
        mark = Mark(at=at, kind=MarkKind.CRASH, job="job", generation=number, nodes=16)
        records[node] = known = records.get(node, NodeRecord(node=node)).with_mark(mark)
        if node == "x":
            found = chance_of(log_odds(known, elsewhere(known, records), at, POLICY))
    assert found >= POLICY.evict_min


def test_a_bad_machine_of_a_large_job_is_found_beside_other_bad_machines() -> None:
    """That other machines fail as well is no reason to believe that it fails by chance, three times of 240."""
    records = NodeRecords()
    found = 0.0
    for number, node in enumerate(("y", "z", "x", "x", "y", "x")):
        at = NOW + number * HOUR
        mark = Mark(at=at, kind=MarkKind.CRASH, job="job", generation=number, nodes=240)
        records[node] = known = records.get(node, NodeRecord(node=node)).with_mark(mark)
        if node == "x":
            found = chance_of(log_odds(known, elsewhere(known, records), at, POLICY))
    assert found >= POLICY.evict_min


def test_a_second_failure_is_suspicious_though_four_other_machines_failed_once() -> None:
    """Several of 240 machines may be bad: none of them has four fifths of the job's failures then."""
    records = NodeRecords()
    for number, node in enumerate(("a", "b", "c", "x", "d", "x")):
        at = NOW + number * 3 * HOUR
        mark = Mark(at=at, kind=MarkKind.CRASH, job="job", generation=number, nodes=240)
        records[node] = records.get(node, NodeRecord(node=node)).with_mark(mark)
    found = chance_of(log_odds(records["x"], elsewhere(records["x"], records), at, POLICY))
    assert POLICY.exchange_min <= found < POLICY.evict_min


@pytest.mark.parametrize("kind", [MarkKind.WITNESSED, MarkKind.ALERT])
def test_what_no_script_can_forge_counts_as_much_as_a_failed_test(kind: MarkKind) -> None:
    assert chance(record(kind)) == chance(record(MarkKind.CHECKS_FAILED)) > POLICY.avoid_min


@pytest.mark.parametrize("other", [MarkKind.KILLED, MarkKind.SLOW])
def test_only_failures_of_the_same_sort_show_that_the_job_fails_anywhere(other: MarkKind) -> None:
    here, there = record(MarkKind.CRASH, MarkKind.CRASH), record(*[other] * 5, node="y")
    assert chance(here, elsewhere(here, NodeRecords({"y": there}))) == chance(here)
    assert chance(here, elsewhere(here, NodeRecords({"y": record(MarkKind.HANG, node="y")}))) < chance(here)
    alike = record(other, other)
    assert chance(alike, elsewhere(alike, NodeRecords({"y": there}))) < chance(alike)
