"""On a device the host's times say nothing of who waits: its flight recorder's do, by what kernels took."""

from __future__ import annotations

import pytest

from holdfast.engines.slow.device_times import WATCHDOG_LOOKS_EVERY_NS, with_device_times
from holdfast.engines.slow.sent_profiles import group_times, profile_of, works
from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, RankTrace
from holdfast.node.collectives.ring_layout import GroupEntry, RingRecord, runs_of
from holdfast.node.ledger.ledger_layout import StepRecord

MS = 1_000_000
STEP_MS, SEEN_MS = 1000, 60
GROUP = GroupEntry("0", "default_pg", runs_of((0, 1)))


def steps(number: int) -> list[StepRecord]:
    ends = ((at + 1) * STEP_MS * MS for at in range(number))
    return [
        StepRecord(step=at, ended_ns=end, duration_ns=STEP_MS * MS, loss=None, grad_norm=None, tokens=None)
        for at, end in enumerate(ends)
    ]


def queued(step: int) -> RingRecord:
    """As the host sees it: over as soon as it is queued, long before it begins."""
    at = step * STEP_MS * MS + 5 * MS
    return RingRecord(step, at, at, at + 1, 4096, step + 1, None, 0, "all_reduce", is_p2p=False, is_on_device=True)


def kernel(step: int, took_ms: int) -> CollectiveRecord:
    """It ends with the step, and the watchdog sees that later."""
    return CollectiveRecord(
        group="0",
        sequence=step + 1,
        operation="all_reduce",
        state="completed",
        input_sizes=((32, 32),),
        dtype="Float",
        created_ns=step * STEP_MS * MS + 5 * MS,
        ended_ns=((step + 1) * STEP_MS + SEEN_MS) * MS,
        took_ns=took_ms * MS,
    )


def device(rank: int, took_ms: int, number: int) -> RankTrace:
    groups = (ProcessGroup(name="0", description="default_pg", ranks=(0, 1)),)
    return RankTrace(rank=rank, groups=groups, records=tuple(kernel(at, took_ms) for at in range(number)))


def test_who_computes_longest_waits_least_on_the_device() -> None:
    ring = [queued(at) for at in range(12)]
    told = []
    for rank, took_ms in ((0, 100), (1, 400)):
        records, groups = with_device_times(ring, [GROUP], device(rank, took_ms, 12))
        assert {record.bytes for record in records} == {4096} and groups == [GROUP]
        told.append(profile_of(rank, steps(12), records, groups, 5))
    by_rank = {work.rank: work.work_s for work in works(told)}
    # The watchdog's look is 100 ms: the end of a kernel is known within that.
    assert by_rank[0] == pytest.approx([0.9] * 5, abs=WATCHDOG_LOOKS_EVERY_NS / 1e9)
    assert by_rank[1] == pytest.approx([0.6] * 5, abs=WATCHDOG_LOOKS_EVERY_NS / 1e9)
    (group,) = group_times(told)
    assert (group.transfer_s, group.waiting_s) == (pytest.approx(0.1), pytest.approx((0.0, 0.3)))


def test_kernels_at_the_same_time_are_not_counted_twice() -> None:
    whole = [*device(0, 300, 12).records, *device(0, 250, 12).records]
    records, groups = with_device_times([], [GROUP], RankTrace(rank=0, records=tuple(whole)))
    told = profile_of(0, steps(12), records, groups, 5)
    assert told.in_calls_s == pytest.approx([0.3] * 5)


def test_without_times_of_kernels_the_hosts_stay() -> None:
    ring = [queued(0)]
    assert with_device_times(ring, [GROUP], device(0, 0, 3)) == (ring, [GROUP])


def test_a_group_that_only_compiled_code_uses_is_added() -> None:
    host = queued(0)
    host = RingRecord(0, host.entered_ns, host.waited_ns, host.left_ns, 8, 1, None, 0, "barrier", is_p2p=False)
    records, groups = with_device_times([host], [GroupEntry("cpu", "", runs_of((0, 1)))], device(0, 100, 2))
    assert [groups[record.group].name for record in records] == ["cpu", "0", "0"]
