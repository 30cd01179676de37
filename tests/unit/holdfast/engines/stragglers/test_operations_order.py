"""What waits for what in traces as profilers write them: transfers that never took place, communication beside
passes, rows that are missing, clocks that differ."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from holdfast.engines.stragglers.straggler_verdict import WhatIf
from holdfast.engines.stragglers.traces.clock_skew import without_skew
from holdfast.engines.stragglers.traces.missing_rows import filled
from holdfast.engines.stragglers.traces.operations import read_operations
from holdfast.engines.stragglers.traces.step_shape import StepShape, shapes
from holdfast.engines.stragglers.what_if.dependencies import StepGraph, graph_of
from holdfast.engines.stragglers.what_if.step_replay import replay
from holdfast.engines.stragglers.what_if.what_if import ideal_s, what_if
from tests.scenes.operation_traces import HEADER, Job

SLOW: dict[tuple[int, int], tuple[float, float]] = {(1, 1): (1.8, 1.8)}


def graphed(trace: bytes | str) -> tuple[StepShape, StepGraph]:
    data = trace if isinstance(trace, bytes) else f"{HEADER}\n{trace}".encode()
    shape, _ = without_skew(shapes(read_operations(data, "trace"))[0])
    return shape, graph_of(shape)


def figures(trace: bytes | str) -> WhatIf:
    return what_if(*graphed(trace))


def with_a_transfer_for_every_pass(trace: bytes, stages: int, chunks: int, *, but_the_first_receive: bool) -> bytes:
    """As some profilers write it: a send and a receive for each pass, also where there is nobody at the other end.

    Also one before the first pass and one after the last. Their numbers follow from their starts.
    """
    rows = [row.split(",") for row in trace.decode().splitlines()[1:]]
    forwards: dict[tuple[str, str], list[list[str]]] = defaultdict(list)
    for row in rows:
        if row[4] == "forward-compute" and row[1] == "0" and row[8] == "0":
            forwards[row[0], row[3]].append(row)
    void: list[list[str]] = []
    for row in rows:
        start_s, end_s = float(row[5]), float(row[5]) + float(row[6])
        first, last = row[1] == row[8] == "0", row[1] == str(stages - 1) and row[8] == str(chunks - 1)
        of_worker = [*row[:4]]
        if row[4] == "forward-compute" and first:
            if not (but_the_first_receive and row is forwards[row[0], row[3]][0]):
                void.append([*of_worker, "forward-recv", f"{start_s - 2e-5:.6f}", "0.00001", "", "", "", ""])
        elif row[4] == "forward-compute" and last:
            void.append([*of_worker, "forward-send", f"{end_s + 1e-5:.6f}", "0.00001", "", "", "", ""])
        elif row[4] == "backward-compute" and first:
            void.append([*of_worker, "backward-send", f"{end_s + 1e-5:.6f}", "0.00001", "", "", "", ""])
        elif row[4] == "backward-compute" and last:
            void.append([*of_worker, "backward-recv", f"{start_s - 2e-5:.6f}", "0.00001", "", "", "", ""])
        elif row[4] == "optimizer" and row[1] == "1":
            void.append([*of_worker, "forward-recv", f"{start_s:.6f}", "0.00001", "", "", "", ""])
    unnumbered = [[*row[:7], "", *row[8:]] for row in rows]
    return "\n".join([HEADER, *(",".join(row) for row in unnumbered + void)]).encode()


@pytest.mark.parametrize("but_the_first_receive", [False, True])
def test_transfers_that_never_took_place_change_nothing(but_the_first_receive: bool) -> None:
    trace = Job(dp=2, pp=3, vpp=2, microbatches=6, steps=2, slow=SLOW).trace()
    padded = with_a_transfer_for_every_pass(trace, 3, 2, but_the_first_receive=but_the_first_receive)
    assert len(padded) > 1.05 * len(trace)
    shape, graph = graphed(padded)
    assert graph.is_void.sum() == padded.count(b",0.00001,") / 2
    wanted, found = figures(trace), what_if(shape, graph)
    assert (found.slowdown, found.last_stage) == pytest.approx((wanted.slowdown, wanted.last_stage), abs=1e-3)


CHUNKS = "".join(
    f"{dp},0,{dp},5,{kind},{start_s},{takes_s},{number},{chunk},0,0\n"
    for dp, pace in enumerate((1, 2))
    for kind, start_s, takes_s, number, chunk in (
        ("forward-compute", 0, pace, 0, 0),
        ("forward-compute", pace, pace, 1, 1),
        ("backward-compute", 2 * pace, 2 * pace, 0, 1),
        ("backward-compute", 4 * pace, 2 * pace, 1, 0),
        ("grads-reduce-scatter", 4 * pace, 8.5 - 4 * pace, 0, 1),
        # Of the faster rank this waits for the slower one's, and for the one before it, not for its own passes.
        ("grads-reduce-scatter", max(8.5, 6 * pace), 12.5 - max(8.5, 6 * pace), 1, 0),
        ("layernorm-grads-all-reduce", 6 * pace, 0.1, 0, -1),
        ("optimizer", 12.5, 0.1, 0, -1),
    )
)


def test_gradients_are_reduced_beside_passes_when_those_of_their_chunk_are_complete() -> None:
    found = figures(CHUNKS)
    assert found.replayed_s == pytest.approx(12.6)
    # Ideal: twice 1.5 s forward and 3 s backward, then the last reduction.
    assert found.slowdown == pytest.approx(12.6 / 9.6)


def test_what_runs_at_the_same_time_does_not_wait_for_each_other() -> None:
    """A receive that was issued before parameters were gathered ends after them."""
    _, graph = graphed(
        """\
0,0,0,5,params-all-gather,0.0,0.1,0,0,-1,-1
0,0,0,5,params-all-gather,0.1,0.1,1,0,-1,-1
0,0,0,5,forward-compute,0.2,0.7,0,0,0,0
0,0,0,5,forward-send,0.9,0.1,0,-1,-1,-1
0,1,1,5,params-all-gather,0.0,0.1,0,0,-1,-1
0,1,1,5,forward-recv,0.0,1.0,0,-1,-1,-1
0,1,1,5,params-all-gather,0.1,0.1,1,0,-1,-1
0,1,1,5,forward-compute,1.0,1.0,0,0,0,1
"""
    )
    assert replay(graph, graph.own_s) == pytest.approx([2.0])


def test_the_ideal_of_what_is_no_communication_is_its_mean() -> None:
    trace = Job(dp=2, pp=1, steps=4).trace().decode().splitlines()[1:]
    first = min(row.split(",")[3] for row in trace)
    rows = [row.replace(",0.000000,", ",0.400000,") if f",{first},gc," in row else row for row in trace]
    shape, graph = graphed("\n".join(rows))
    assert ideal_s(shape, graph)[graph.node_of[shape.of_kind("gc")]] == pytest.approx(0.1)


@pytest.mark.parametrize("job", [{}, {"vpp": 2, "microbatches": 6}, {"overlap": True}])
@pytest.mark.parametrize(("lost", "skew_s"), [(0.03, 0.0), (0.0, 0.05), (0.01, 0.05)])
def test_missing_rows_and_clocks_change_no_figure(job: dict[str, Any], lost: float, skew_s: float) -> None:
    """Neither does the origin of time, which is each step's own."""
    trace = Job(dp=2, pp=3, steps=4, slow=SLOW, **job).trace()
    wanted, chance = figures(trace), np.random.default_rng(1)
    behind_s = chance.normal(0, skew_s, 6)
    rows = []
    for line in trace.decode().splitlines()[1:]:
        row = line.split(",")
        moved_s = behind_s[int(row[0]) * 3 + int(row[1])] + 1.7e9 + 60 * int(row[3])
        if chance.random() >= lost:
            rows.append(",".join((*row[:5], f"{float(row[5]) + moved_s:.6f}", *row[6:])))
    found = figures("\n".join(rows))
    assert (found.slowdown, found.last_stage) == pytest.approx((wanted.slowdown, wanted.last_stage), abs=1.5e-3)


def test_a_missing_time_is_told_from_what_it_usually_follows() -> None:
    """The second operation begins as the first ends, and ends as the third begins, however long each takes."""
    takes_s = np.array([[1.0, 2.0, 3.0], [1.0, 5.0, 2.0], [1.0, 1.0, 1.0]])
    end_s = np.cumsum(takes_s, axis=0)
    start_s = end_s - takes_s
    start_s[1, 1] = end_s[1, 1] = np.nan
    starts_s, ends_s = filled(start_s, end_s, np.zeros(3, np.int64))
    assert (starts_s[1, 1], ends_s[1, 1]) == (2.0, 7.0)
