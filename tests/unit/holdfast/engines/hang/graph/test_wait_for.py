"""Who waits for whom, case by case."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.engines.hang.dumps.flight_recorder import read_flight_recorder
from holdfast.engines.hang.graph.wait_for import WaitVerdict, judge_collectives
from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, RankTrace
from holdfast.topology import Mesh

TP = (
    ProcessGroup(name="a", description="TP", ranks=(0, 1, 2, 3)),
    ProcessGroup(name="b", description="TP", ranks=(4, 5, 6, 7)),
)
PP = tuple(ProcessGroup(name=f"pp{rank}", description="PP", ranks=(rank, rank + 4)) for rank in range(4))
WORLD = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(8)))


def op(group: str, sequence: int, operation: str = "all_reduce", size: int = 8, **fields: Any) -> CollectiveRecord:
    sizes = ((size,),)
    return CollectiveRecord(
        group=group, sequence=sequence, operation=operation, input_sizes=sizes, output_sizes=sizes, **fields
    )


def message(group: str, sequence: int, operation: str, peer: int, **fields: Any) -> CollectiveRecord:
    return CollectiveRecord(group=group, sequence=sequence, operation=operation, is_p2p=True, peer=peer, **fields)


def trace(rank: int, *records: CollectiveRecord, groups: Sequence[ProcessGroup] = (), **fields: Any) -> RankTrace:
    own = groups or [group for group in (*TP, *PP, WORLD) if rank in group.ranks]
    return RankTrace(rank=rank, groups=tuple(own), records=records, **fields)


def tp(rank: int) -> str:
    return "a" if rank < 4 else "b"


def said(verdict: WaitVerdict) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.kind, each.ranks) for each in verdict.blamed]


def test_who_never_joined_is_named_and_who_waits_is_a_victim() -> None:
    traces = [trace(rank, op("a", 5)) for rank in (0, 1, 3)] + [trace(2, op("a", 4, state="completed"))]
    verdict = judge_collectives(traces)
    assert said(verdict) == [("never_joined", (2,))]
    assert verdict.victims == (0, 1, 3)
    (blamed,) = verdict.blamed
    assert (blamed.group, blamed.group_description, blamed.operation, blamed.sequence) == ("a", "TP", "all_reduce", 5)
    assert "ranks 0-1, 3 wait in all_reduce 5 of group a (TP), which rank 2 has not joined" in blamed.evidence


def test_who_is_missing_because_it_waits_elsewhere_is_no_culprit() -> None:
    # 6 hangs; its neighbours wait for it, and the first stage for messages of theirs.
    second = [trace(rank, op("b", 9)) for rank in (4, 5, 7)]
    first = [trace(rank, message(f"pp{rank}", 3, "recv", rank + 4)) for rank in range(4)]
    assert said(judge_collectives([*first, *second, trace(6)])) == [("never_joined", (6,))]


def test_chains_of_messages_are_followed_to_the_end() -> None:
    chain = ProcessGroup(name="pp", description="PP", ranks=(0, 1, 2, 3))
    traces = [trace(rank, message("pp", 7 + rank, "recv", rank + 1), groups=[chain]) for rank in range(3)]
    verdict = judge_collectives([*traces, trace(3, groups=[chain])])
    assert said(verdict) == [("never_joined", (3,))]
    assert verdict.victims == (0, 1, 2)


def test_messages_pair_off_whatever_their_numbers() -> None:
    # One message is under way on both sides; the second one only its sender has begun.
    traces = [
        trace(0, message("pp0", 40, "send", 4), message("pp0", 41, "send", 4)),
        trace(4, message("pp0", 17, "recv", 0), op("b", 3)),
        *(trace(rank, op("b", 3)) for rank in (5, 6)),
        trace(7),
    ]
    assert said(judge_collectives(traces))[0] == ("never_joined", (7,))


def test_who_is_late_with_what_the_others_have_ended_does_not_move() -> None:
    traces = [trace(rank, op("a", 9), completed={"a": 8}) for rank in (0, 1, 3)]
    traces.append(trace(2, op("a", 7), op("a", 8), completed={"a": 6}))
    verdict = judge_collectives(traces)
    assert said(verdict) == [("joined_not_moving", (2,))]
    assert verdict.blamed[0].sequence == 7


def test_a_root_that_is_through_with_its_broadcast_makes_nobody_late() -> None:
    traces = [
        trace(0, op("a", 5, "broadcast", state="completed"), op("a", 6)),
        *(trace(rank, op("a", 5, "broadcast")) for rank in (1, 2)),
        trace(3),
    ]
    assert said(judge_collectives(traces)) == [("never_joined", (3,))]


def test_all_have_joined_and_nothing_tells_them_apart() -> None:
    verdict = judge_collectives([trace(rank, op("a", 5)) for rank in range(4)])
    assert said(verdict) == [("joined_not_moving", (0, 1, 2, 3))]
    assert verdict.blamed[0].confidence <= 0.5


def test_all_have_joined_and_one_kernel_has_not_started() -> None:
    traces = [trace(rank, op("a", 5, state="scheduled" if rank == 1 else "started")) for rank in range(4)]
    assert said(judge_collectives(traces)) == [("joined_not_moving", (1,))]


def test_all_have_joined_and_one_host_came_less_far() -> None:
    traces = [trace(rank, op("a", 5), op("0", 2)) for rank in (0, 1, 2)] + [trace(3, op("a", 5))]
    traces += [trace(rank, op("0", 2)) for rank in range(4, 8)]
    assert said(judge_collectives(traces)) == [("joined_not_moving", (3,))]


def test_what_several_operations_that_stand_have_in_common() -> None:
    x = ProcessGroup(name="x", description="X", ranks=(0, 1, 2, 5))
    y = ProcessGroup(name="y", description="Y", ranks=(2, 3, 4, 6))
    traces = [trace(rank, op("x", 1), groups=[x]) for rank in (0, 1)]
    traces += [trace(rank, op("y", 1), groups=[y]) for rank in (3, 4)]
    verdict = judge_collectives(traces)
    assert said(verdict) == [("no_dump", (2,))]
    assert "the only ranks that all 2 operations that do not end have in common" in verdict.blamed[0].evidence


def test_a_cut_between_two_machines_leaves_both_of_them() -> None:
    traces = [trace(rank, message(f"pp{rank}", 3, "send", rank + 4)) for rank in range(4)]
    traces += [trace(rank, message(f"pp{rank - 4}", 3, "recv", rank - 4)) for rank in range(4, 8)]
    verdict = judge_collectives(traces, ranks_per_node=4)
    assert said(verdict) == [("joined_not_moving", (0, 1, 2, 3, 4, 5, 6, 7))]
    assert verdict.blamed[0].nodes == ("0", "1")


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (op("a", 5, size=16), "all_reduce of 16 elements where the others have all_reduce of 8 elements"),
        (op("a", 5, "_all_gather_base"), "_all_gather_base of 8 elements where"),
        (op("a", 5, dtype="Float"), "all_reduce Float of 8 elements where"),
    ],
)
def test_who_means_something_else_by_a_collective(odd: CollectiveRecord, words: str) -> None:
    traces = [trace(rank, op("a", 5)) for rank in (0, 1, 3)] + [trace(2, odd)]
    verdict = judge_collectives(traces)
    assert said(verdict) == [("mismatch", (2,))]
    assert words in verdict.blamed[0].reason


def test_shapes_may_differ_where_the_elements_are_as_many() -> None:
    flat = [trace(rank, op("a", 5)) for rank in (0, 1, 3)]
    square = CollectiveRecord(
        group="a", sequence=5, operation="all_reduce", input_sizes=((2, 4),), output_sizes=((2, 4),)
    )
    assert all(each.kind != "mismatch" for each in judge_collectives([*flat, trace(2, square)]).blamed)


def test_tokens_may_be_spread_unevenly() -> None:
    traces = [trace(rank, op("a", 5, "all_to_all", size=100 + rank)) for rank in (0, 1, 3)] + [trace(2)]
    assert said(judge_collectives(traces)) == [("never_joined", (2,))]


def test_two_that_differ_are_told_apart_by_other_groups_of_the_kind() -> None:
    pairs = [ProcessGroup(name=f"d{first}", description="DP", ranks=(first, first + 1)) for first in (0, 2, 4)]
    traces = [
        trace(rank, op(f"d{rank // 2 * 2}", 3, size=5 if rank == 1 else 8), groups=[pairs[rank // 2]])
        for rank in range(6)
    ]
    verdict = judge_collectives(traces)
    assert said(verdict)[0] == ("mismatch", (1,))


def test_two_that_differ_are_told_apart_by_what_they_did_before() -> None:
    pair = [ProcessGroup(name="d", description="DP", ranks=(0, 1))]
    traces = [trace(rank, op("d", 2, state="completed"), op("d", 3, size=8 + 4 * rank), groups=pair) for rank in (0, 1)]
    assert said(judge_collectives(traces)) == [("mismatch", (1,))]


def test_two_that_differ_and_nothing_else_are_both_named() -> None:
    pair = [ProcessGroup(name="d", description="DP", ranks=(0, 1))]
    traces = [trace(rank, op("d", 3, size=8 + rank), groups=pair) for rank in (0, 1)]
    verdict = judge_collectives(traces)
    assert said(verdict) == [("mismatch", (0, 1))]
    assert verdict.blamed[0].confidence == 0.5


def test_who_passed_over_a_collective_breaks_the_circle() -> None:
    # Everybody waits for 2 in its group, and 2 for everybody in the whole job's.
    traces = [trace(rank, op("a", 5), entered={"a": 5, "0": 1}) for rank in (0, 1, 3)]
    traces.append(trace(2, op("0", 2), entered={"a": 4, "0": 2}))
    traces += [trace(rank, op("0", 2), entered={"b": 5, "0": 2}) for rank in range(4, 8)]
    assert said(judge_collectives(traces)) == [("never_joined", (2,))]


def test_a_peer_without_a_trace_hides_nobody_who_passed_over_a_collective() -> None:
    traces = [trace(rank, op("a", 5), op("0", 2), entered={"a": 5, "0": 2}) for rank in (0, 1)]
    traces.append(trace(2, op("0", 2), entered={"a": 4, "0": 2}))
    # Of 3 nothing is known but that it waits; 7 waits for it, and all others for 7.
    traces.append(trace(7, message("pp3", 9, "recv", 3), entered={"b": 5, "0": 1}))
    traces += [trace(rank, op("0", 2), entered={"b": 5, "0": 2}) for rank in (4, 5, 6)]
    assert said(judge_collectives(traces, waiting={3})) == [("never_joined", (2,))]


def test_a_kernel_that_has_not_started_tells_also_where_a_trace_is_lost() -> None:
    traces = [trace(rank, op("0", 5, state="scheduled" if rank == 6 else "started")) for rank in range(8) if rank != 1]
    verdict = judge_collectives(traces, waiting={1})
    assert said(verdict) == [("joined_not_moving", (6,))]
    assert verdict.blamed[0].confidence == 0.85
    assert said(judge_collectives(traces)) == [("no_dump", (1,))], "of 1 it is not known that it waits"


def test_a_rank_without_a_dump_that_all_wait_for() -> None:
    traces = [trace(rank, op("a", 5)) for rank in (0, 1, 3)]
    assert said(judge_collectives(traces)) == [("no_dump", (2,))]
    assert said(judge_collectives([*traces, RankTrace(rank=2, unread="no answer")])) == [("no_dump", (2,))]


def test_a_machine_without_dumps() -> None:
    lanes = [ProcessGroup(name=f"d{rank}", description="DP", ranks=(rank, rank + 4, rank + 8)) for rank in range(4)]
    traces = [trace(rank, op(f"d{rank % 4}", 5), groups=[lanes[rank % 4]]) for rank in (*range(4), *range(8, 12))]
    verdict = judge_collectives(traces, ranks_per_node=4)
    assert said(verdict) == [("no_dump", (4, 5, 6, 7))]
    assert verdict.blamed[0].nodes == ("1",)


def test_lost_dumps_on_several_machines_leave_the_group_unless_a_device_has_not_begun() -> None:
    joined = [trace(rank, op("0", 5)) for rank in range(8) if rank not in (1, 4, 6)]
    everyone = [("joined_not_moving", tuple(range(8)))]
    assert said(judge_collectives(joined, ranks_per_node=2)) == everyone
    states = ["scheduled" if rank == 3 else "started" for rank in range(8)]
    begun = [trace(rank, op("0", 5, state=states[rank])) for rank in range(8) if rank not in (1, 4, 6)]
    assert said(judge_collectives(begun, ranks_per_node=2)) == [("joined_not_moving", (3,))]


def test_a_lost_dump_is_not_blamed_where_another_explains_the_hang() -> None:
    second = [trace(rank, op("b", 9)) for rank in (5, 7)]
    first = [trace(rank, message(f"pp{rank}", 3, "recv", rank + 4)) for rank in range(4)]
    verdict = judge_collectives([*first, *second, trace(6)])
    assert said(verdict) == [("never_joined", (6,))]
    assert any("no trace of rank 4" in note for note in verdict.notes)


def test_a_rank_that_is_known_to_wait_is_not_blamed_for_its_lost_dump() -> None:
    traces = [trace(rank, op("a", 5)) for rank in (0, 1)]
    assert said(judge_collectives(traces, waiting={3})) == [("no_dump", (2,))]


def test_groups_whose_members_nobody_names() -> None:
    bare = [ProcessGroup(name="0", description="default_pg")]
    traces = [trace(rank, op("0", 6), groups=bare) for rank in (0, 1, 3)]
    late = trace(2, op("0", 5, state="completed"), groups=bare)
    assert said(judge_collectives([*traces, late])) == [("never_joined", (2,))]
    assert said(judge_collectives(traces, Mesh(("dp",), (4,)))) == [("no_dump", (2,))]


def test_two_groups_of_one_name_are_told_apart_by_their_members() -> None:
    halves = [ProcessGroup(name="1", description="TP", ranks=ranks) for ranks in ((0, 1), (2, 3))]
    traces = [
        trace(0, op("1", 5), groups=[halves[0]]),
        trace(1, groups=[halves[0]], entered={"1": 4}, completed={"1": 4}),
        trace(2, groups=[halves[1]], entered={"1": 5}, completed={"1": 5}),
        trace(3, groups=[halves[1]], entered={"1": 5}, completed={"1": 5}),
    ]
    assert said(judge_collectives(traces)) == [("never_joined", (1,))]


def test_a_counter_reaches_further_back_than_the_records() -> None:
    traces = [trace(rank, op("a", 5)) for rank in (0, 1, 3)]
    joined = trace(2, entered={"a": 5}, completed={"a": 4})
    assert said(judge_collectives([*traces, joined])) == [("joined_not_moving", (0, 1, 2, 3))]


def test_two_at_fault_are_both_named() -> None:
    traces = [trace(rank, op(tp(rank), 5)) for rank in (0, 1, 3, 4, 6, 7)] + [trace(2), trace(5)]
    assert said(judge_collectives(traces)) == [("never_joined", (2,)), ("never_joined", (5,))]


def test_nothing_pending_blames_nobody() -> None:
    assert judge_collectives([trace(rank, op("a", 5, state="completed")) for rank in range(4)]).blamed == ()
    assert judge_collectives([]) == WaitVerdict()


def test_what_is_pending_but_never_recorded_as_ended_is_not_waited_for() -> None:
    # Ended by the counter: records of some backends never say so.
    traces = [trace(rank, op("a", 5), completed={"a": 5}) for rank in range(4)]
    assert judge_collectives(traces).blamed == ()


@pytest.mark.skipif("HOLDFAST_FIELD_DATA" not in os.environ, reason="HOLDFAST_FIELD_DATA names no folder")
@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
def test_hangs_from_the_field(name: str) -> None:
    file = Path(os.environ["HOLDFAST_FIELD_DATA"], "flight_recorder", f"{name}.json")
    verdict = judge_collectives(read_flight_recorder(file.read_bytes()))
    assert sorted(each.ranks for each in verdict.blamed) == [(9,), (14,)]
    assert len(verdict.victims) == 14
