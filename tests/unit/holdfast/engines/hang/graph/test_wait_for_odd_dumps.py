"""Who waits for whom where dumps are clipped, of several moments, or of ranks that run another program."""

from __future__ import annotations

from holdfast.engines.hang.graph.wait_for import judge_collectives
from holdfast.events.parts.traces import CollectiveRecord, ProcessGroup, RankTrace
from tests.unit.holdfast.engines.hang.graph.test_wait_for import TP, message, op, said, tp, trace

RING = [ProcessGroup(name="cp", description="CP", ranks=(0, 1, 2, 3))]
PAIRS = [ProcessGroup(name=f"d{first}", description="undefined", ranks=(first, first + 4)) for first in range(4)]


def step(rank: int, sequence: int) -> list[CollectiveRecord]:
    """A ring's exchange: one batch of a message to the next rank and one from the last."""
    return [
        message("cp", sequence, "send", (rank + 1) % 4, state="scheduled"),
        message("cp", sequence, "recv", (rank - 1) % 4, state="scheduled"),
    ]


def test_a_message_that_all_have_joined_waits_for_the_rest_of_its_batch() -> None:
    # 1 has not come. 3 is through with a step that 2 is not, as 2 hears from 1 in it and 3 does not.
    traces = [
        trace(0, *step(0, 7), *step(0, 8), groups=RING),
        trace(2, *step(2, 7), *step(2, 8), groups=RING),
        trace(3, *step(3, 8), groups=RING),
    ]
    assert said(judge_collectives([*traces, trace(1, groups=RING)])) == [("never_joined", (1,))]
    assert said(judge_collectives(traces)) == [("no_dump", (1,))]


def test_a_ring_that_all_have_joined_is_named_as_one() -> None:
    verdict = judge_collectives([trace(rank, *step(rank, 7), groups=RING) for rank in range(4)])
    assert said(verdict) == [("joined_not_moving", (0, 1, 2, 3))]


def test_what_only_a_counter_tells_is_waited_in() -> None:
    # The ring of 0 has lost what it waits in; what it has left is later.
    groups = [*TP, ProcessGroup(name="0", description="default_pg", ranks=tuple(range(8)))]
    lost = trace(0, op("a", 9), op("0", 3), groups=groups, entered={"a": 9, "0": 3}, completed={"a": 6, "0": 2})
    others = [trace(rank, op("a", 7), op("0", 3), groups=groups, completed={"a": 6, "0": 2}) for rank in (1, 2)]
    others += [trace(rank, op("0", 3), groups=groups, completed={"b": 9, "0": 2}) for rank in range(4, 8)]
    late = trace(3, groups=groups, entered={"a": 6, "0": 2}, completed={"a": 6, "0": 2})
    assert said(judge_collectives([lost, *others, late])) == [("never_joined", (3,))]


def test_a_few_that_run_what_most_pass_by_are_at_fault() -> None:
    verdict = judge_collectives([trace(1, op("0", 5)), *(trace(rank, entered={"0": 4}) for rank in (0, *range(2, 8)))])
    assert said(verdict) == [("mismatch", (1,))]
    # One machine may well have stopped as a whole.
    few = [trace(0, op("a", 5)), *(trace(rank, entered={"a": 4}) for rank in (1, 2, 3))]
    assert said(judge_collectives(few, ranks_per_node=4)) == [("never_joined", (rank,)) for rank in (1, 2, 3)]


def test_two_that_differ_are_told_apart_by_what_other_groups_have_ended() -> None:
    traces = [
        trace(rank, op(f"d{rank % 4}", 12, "_all_gather_base", state="completed"), groups=PAIRS)
        for rank in (1, 2, 3, 5, 6, 7)
    ]
    traces += [trace(0, op("d0", 12, "_all_gather_base"), groups=PAIRS)]
    traces += [trace(4, op("d0", 12, "_reduce_scatter_base"), groups=PAIRS)]
    assert said(judge_collectives(traces)) == [("mismatch", (4,))]


def test_two_that_differ_are_told_apart_by_what_came_before() -> None:
    pair = [ProcessGroup(name="d", description="DP", ranks=(0, 1))]
    order = ["all_reduce", "barrier", "all_reduce", "barrier", "all_reduce", "all_reduce", "all_reduce"]
    past = [op("d", number, name, state="completed") for number, name in enumerate(order[:3], 1)]
    traces = [trace(0, *past, op("d", 4, "barrier"), groups=pair), trace(1, *past, op("d", 4), groups=pair)]
    # An all-reduce is more frequent; a barrier is what has followed one.
    assert said(judge_collectives(traces)) == [("mismatch", (1,))]


def test_who_began_collectives_in_another_order_than_its_peers() -> None:
    world = [*TP, ProcessGroup(name="0", description="default_pg", ranks=tuple(range(8)))]
    traces = [trace(rank, op("a", 5), op("0", 2), groups=world) for rank in (0, 1, 3)]
    traces += [trace(2, op("0", 2), op("a", 5), groups=world)]
    traces += [trace(rank, op("0", 2), groups=world) for rank in range(4, 8)]
    assert said(judge_collectives(traces)) == [("never_joined", (2,))]


def test_who_shares_no_tokens_with_the_missing_one_is_through_and_makes_nobody_late() -> None:
    through = trace(0, op("a", 5, "all_to_all", state="completed"), entered={"a": 5}, completed={"a": 5})
    waiting = trace(1, op("a", 5, "all_to_all"), entered={"a": 5}, completed={"a": 4})
    gone = [trace(rank, entered={"a": 5}, completed={"a": 5}) for rank in (2,)]
    missing = trace(3, entered={"a": 4}, completed={"a": 4})
    assert said(judge_collectives([through, waiting, *gone, missing])) == [("never_joined", (3,))]


def moments(old: set[int], ranks: int = 8) -> list[RankTrace]:
    """The members of both groups; `old` ones have not begun what the others have ended, and rank 7 hangs."""
    return [
        trace(rank, op(tp(rank), 2, state="completed"), entered={tp(rank): 2}, completed={tp(rank): 2})
        if rank in old
        else trace(rank, op(tp(rank), 8, state="completed"), *([op(tp(rank), 9)] if rank not in (3, 7) else []))
        for rank in range(ranks)
    ]


def test_an_old_dump_counts_as_none() -> None:
    verdict = judge_collectives(moments({1}))
    assert said(verdict) == [("never_joined", (3,)), ("never_joined", (7,))]
    assert any("traces of rank 1 are older" in note for note in verdict.notes)


def test_a_job_that_went_on_blames_nobody() -> None:
    verdict = judge_collectives(moments({1, 4, 6}))
    assert verdict.blamed == ()
    assert any("went on while" in note for note in verdict.notes)


def test_of_several_dumps_of_a_rank_the_last_counts() -> None:
    traces = [trace(rank, op("a", 5), taken_ns=9) for rank in range(4)]
    traces[2] = trace(2, op("a", 4, state="completed"), taken_ns=9)
    old = [trace(rank, op("a", 3), taken_ns=5) for rank in range(4)]
    verdict = judge_collectives([*traces, *old])
    assert said(verdict) == [("never_joined", (2,))]
    assert any("several traces of ranks 0-3" in note for note in verdict.notes)
