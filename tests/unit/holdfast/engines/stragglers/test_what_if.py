"""Steps replayed with other durations."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.engines.stragglers.traces.operations import read_operations
from holdfast.engines.stragglers.traces.step_shape import StepShape, shapes
from holdfast.engines.stragglers.what_if.dependencies import ContradictoryOrder, StepGraph, graph_of
from holdfast.engines.stragglers.what_if.shares import shares_of
from holdfast.engines.stragglers.what_if.step_replay import replay
from holdfast.engines.stragglers.what_if.what_if import what_if
from tests.scenes.operation_traces import HEADER, Job


def shape_of(rows: str) -> StepShape:
    (shape,) = shapes(read_operations(f"{HEADER}\n{rows}".encode(), "trace"))
    return shape


TWO_STAGES = """\
0,0,0,5,forward-compute,0.0,1.0,0,0,0,0
0,0,0,5,forward-send,1.0,0.5,0,-1,-1,-1
0,1,1,5,forward-recv,0.0,1.5,0,-1,-1,-1
0,1,1,5,forward-compute,1.5,2.0,0,0,0,1
0,1,1,5,backward-compute,3.5,3.0,0,0,0,1
0,1,1,5,backward-send,6.5,0.5,0,-1,-1,-1
0,0,0,5,backward-recv,1.5,5.5,0,-1,-1,-1
0,0,0,5,backward-compute,7.0,1.0,0,0,0,0
"""


def own_s(shape: StepShape, graph: StepGraph, kind: str) -> list[float]:
    nodes = np.unique(graph.node_of[shape.of_kind(kind)])
    return graph.own_s[nodes, 0].tolist()


def test_a_transfer_takes_what_it_takes_once_both_are_there() -> None:
    shape = shape_of(TWO_STAGES)
    graph = graph_of(shape)
    assert own_s(shape, graph, "forward-recv") == own_s(shape, graph, "forward-send") == [0.5]
    assert own_s(shape, graph, "backward-recv") == [0.5]
    assert replay(graph, graph.own_s).tolist() == [8.0]


def test_figures_of_a_step_worked_out_by_hand() -> None:
    found = what_if(shape := shape_of(TWO_STAGES), graph_of(shape))
    # Ideal: 1.5 forward, 2.0 backward, 0.5 a transfer.
    assert (found.recorded_s, found.replayed_s, found.ideal_s, found.slowdown) == (8.0, 8.0, 8.0, 1.0)
    assert found.by_kind["forward-compute"] == found.by_kind["backward-pp-comm"] == 1.0
    assert found.by_stage == (1.0 - 1.5 / 8, 1.0 + 1.5 / 8)


def test_a_collective_begins_when_the_last_is_there() -> None:
    rows = "".join(
        f"{dp},0,{dp},5,forward-compute,0.0,{takes},0,0,0,0\n"
        f"{dp},0,{dp},5,grads-reduce-scatter,{takes},{4.5 - takes},0,0,-1,-1\n"
        for dp, takes in enumerate((1.0, 4.0, 2.0))
    )
    shape = shape_of(rows)
    graph = graph_of(shape)
    assert own_s(shape, graph, "grads-reduce-scatter") == [0.5]
    found = what_if(shape, graph)
    assert found.slowdown == pytest.approx(4.5 / (7 / 3 + 0.5))
    assert found.by_worker[1][0] == pytest.approx(found.slowdown)
    assert found.by_worker[0][0] == 1.0
    assert found.worst_workers == pytest.approx(1.0)


def test_what_lies_behind_a_later_transfer_is_not_slow() -> None:
    """A batch ends with the last of it: the transfers that were done before are taken as usual."""
    (shape,) = shapes(read_operations(Job(vpp=2, last_stage=(2.0, 2.0), steps=2).trace(), "trace"))
    graph = graph_of(shape)
    assert max(own_s(shape, graph, "forward-send")) < 0.002


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("vpp", [1, 2])
def test_a_step_replayed_as_it_was_lasts_as_long(vpp: int, overlap: bool) -> None:
    job = Job(vpp=vpp, overlap=overlap, steps=3, lengths=0.1, slow={(1, 2): (1.5, 1.5)}, last_stage=(1.2, 1.2))
    (shape,) = shapes(read_operations(job.trace(), "trace"))
    graph = graph_of(shape)
    lasted_s = shape.end_s.max(axis=0) - shape.start_s.min(axis=0)
    assert replay(graph, graph.own_s) == pytest.approx(lasted_s, rel=0.02)


def test_operations_that_wait_for_one_another_in_a_circle_are_refused() -> None:
    rows = "".join(
        f"{dp},0,{dp},5,forward-compute,0,1,0,0,0,0\n"
        f"{dp},0,{dp},5,a-all-reduce,{1 + dp},1,0,-1,-1,-1\n{dp},0,{dp},5,b-all-reduce,{2 - dp},1,0,-1,-1,-1\n"
        for dp in (0, 1)
    )
    with pytest.raises(ContradictoryOrder, match="circle"):
        graph_of(shape_of(rows))


def test_steps_with_another_number_of_microbatches_are_apart() -> None:
    short = Job(steps=1, microbatches=4).trace().decode().splitlines()[1:]
    many = Job(steps=3).trace().decode() + "\n".join(row.replace(",10,", ",99,", 1) for row in short) + "\n"
    assert [shape.steps.tolist() for shape in shapes(read_operations(many.encode(), "trace"))] == [[10, 13, 16], [99]]


def test_shares_add_up_and_treat_equals_alike() -> None:
    """Two causes that hide each other get half each; one that does nothing gets nothing."""

    def lasts_s(gone: frozenset[str]) -> float:
        return 10.0 - (4.0 if {"a", "b"} <= gone else 0.0) - (1.0 if "c" in gone else 0.0)

    assert shares_of(["a", "b", "c", "d"], lasts_s) == pytest.approx({"a": 2.0, "b": 2.0, "c": 1.0, "d": 0.0})


def test_what_is_done_in_some_steps_only_takes_no_time_in_the_others() -> None:
    trace = Job(steps=6, dp=2, pp=2).trace().decode().splitlines()
    rows = [row.replace(",0.000000,", ",0.250000,") for row in trace[1:] if ",gc," not in row or ",16," in row]
    shape = shape_of("\n".join(rows))
    assert shape.was_recorded.all()
    collected = shape.duration_s[shape.of_kind("gc")]
    assert collected.tolist() == [[0.0, 0.0, 0.25, 0.0, 0.0, 0.0]] * 4
