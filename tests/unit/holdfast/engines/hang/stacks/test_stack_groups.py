"""Whom stacks blame: outliers by string match, peers by place in the mesh, groups that outliers share."""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.engines.hang.stacks.stack_groups import StackVerdict, judge_stacks
from holdfast.events.parts.traces import Frame, ProcessStacks, ThreadStack
from holdfast.topology import Mesh
from tests.scenes import stacks as scenes
from tests.scenes.stacks import Calls, job, process

FIG_7 = Mesh.parse("dp=4,pp=4,tp=2")
MEGATRON = Mesh.parse("pp=4,dp=4,tp=8")


def blamed(verdict: StackVerdict) -> list[tuple[int, ...]]:
    return [one.ranks for one in verdict.blamed]


def test_one_rank_in_its_own_code_while_all_others_wait() -> None:
    stacks = [process(rank, scenes.DEADLOCK if rank == 5 else scenes.GRAD_SYNC) for rank in range(8)]
    verdict = judge_stacks(stacks, None, 4)
    assert (blamed(verdict), verdict.blamed[0].nodes, verdict.outliers) == ([(5,)], ("1",), (5,))
    assert "_guarded (hooks.py:12)" in verdict.blamed[0].evidence[0]
    assert [(group.count, group.is_healthy, group.waits_for) for group in verdict.groups] == [
        (7, True, "reduce_scatter_tensor"),
        (1, False, ""),
    ]


def test_of_two_ranks_the_one_that_waits_is_the_victim() -> None:
    assert blamed(judge_stacks([process(0, scenes.GRAD_SYNC), process(1, scenes.DEADLOCK)], None, 1)) == [(1,)]


def test_all_at_one_place_blame_nobody() -> None:
    verdict = judge_stacks(job(FIG_7, lambda _: scenes.GRAD_SYNC), FIG_7, 2)
    assert (verdict.blamed, verdict.outliers) == ((), ())
    assert "the stacks blame no rank" in verdict.notes[0]


def test_a_stopped_rank_is_at_fault_wherever_it_stands() -> None:
    stacks = job(FIG_7, lambda _: scenes.GRAD_SYNC)
    stacks[9] = msgspec.structs.replace(stacks[9], state="T")
    verdict = judge_stacks(stacks, FIG_7, 2)
    assert (blamed(verdict), verdict.blamed[0].nodes, verdict.blamed[0].confidence) == ([(9,)], ("4",), 0.95)
    assert "is stopped" in verdict.blamed[0].reason


def test_rank_0_saves_while_all_others_wait_at_the_barrier() -> None:
    stacks = [process(rank, scenes.WRITES if rank == 0 else scenes.BARRIER) for rank in range(16)]
    verdict = judge_stacks(stacks, Mesh.parse("dp=2,tp=8"), 8)
    assert blamed(verdict) == [(0,)]
    assert "a checkpoint" in verdict.blamed[0].reason


def test_a_rank_that_waits_for_data_is_named_with_what_its_loader_does() -> None:
    stacks = [process(rank, scenes.DATA if rank == 3 else scenes.GRAD_SYNC) for rank in range(8)]
    stacks += [
        process(rank, scenes.LOADER_READS if rank == 3 else scenes.LOADER_IDLE, kind="data_loader") for rank in range(8)
    ]
    verdict = judge_stacks(stacks, Mesh.parse("dp=8"), 4)
    assert blamed(verdict) == [(3,)]
    assert any("data loader" in line and "read_shard" in line for line in verdict.blamed[0].evidence)
    assert {group.kind for group in verdict.groups} == {"rank", "data_loader"}


def test_a_loader_that_is_busy_alone_blames_nobody() -> None:
    stacks = [process(rank, scenes.GRAD_SYNC) for rank in range(8)]
    stacks += [
        process(rank, scenes.LOADER_READS if rank == 3 else scenes.LOADER_IDLE, kind="data_loader") for rank in range(8)
    ]
    assert judge_stacks(stacks, None, 4).blamed == ()


def stages(where: dict[str, int]) -> Calls:
    """A hang at the end of a step: the embedding's stages wait for each other, the others for them."""
    return scenes.EMBEDDING if where["pp"] in (0, 3) else scenes.GRAD_SYNC


def test_stages_that_wait_at_places_of_their_own_are_no_outliers() -> None:
    verdict = judge_stacks(job(MEGATRON, stages), MEGATRON, 8)
    assert (verdict.outliers, verdict.blamed) == ((), ())


@pytest.mark.parametrize("rank", [0, 37, 64, 127])
def test_one_rank_stands_out_from_its_own_stage(rank: int) -> None:
    stacks = job(MEGATRON, stages)
    stacks[rank] = process(rank, scenes.DEADLOCK)
    verdict = judge_stacks(stacks, MEGATRON, 8)
    assert (blamed(verdict), verdict.blamed[0].nodes) == ([(rank,)], (str(rank // 8),))


def test_the_smaller_stage_without_a_mesh_is_no_outlier() -> None:
    stacks = job(MEGATRON, lambda where: scenes.EMBEDDING if where["pp"] == 3 else scenes.GRAD_SYNC)
    assert judge_stacks(stacks, None, 8).blamed == ()


def test_ranks_that_sit_out_in_every_replica_are_healthy() -> None:
    mesh = Mesh.parse("dp=4,cp=4,tp=2")
    stacks = job(mesh, lambda where: scenes.BARRIER if where["cp"] == 3 else scenes.TP_GATHER)
    stacks[17] = process(17, scenes.DEADLOCK)
    assert blamed(judge_stacks(stacks, mesh, 8)) == [(17,)]


def test_of_two_replicas_the_one_that_has_moved_on_is_healthy() -> None:
    mesh = Mesh.parse("dp=2,pp=4,tp=2")
    stuck = (scenes.IRECV, scenes.IRECV, scenes.ISEND, scenes.TP_GATHER)
    stacks = job(mesh, lambda where: stuck[where["pp"]] if where["dp"] else scenes.GRAD_SYNC)
    verdict = judge_stacks(stacks, mesh, 2)
    assert verdict.blamed[0].nodes == ("4", "5", "6", "7")


def test_groups_along_two_dimensions_cross_where_the_fault_is() -> None:
    mesh = Mesh.parse("dp=4,pp=4,ep=4,tp=8")

    def at(where: dict[str, int]) -> Calls:
        if where["dp"] == 2 and where["pp"] == 1:
            return scenes.ALL_TO_ALL
        return scenes.RECV_FORWARD if where["dp"] == 2 and where["ep"] == 3 else scenes.GRAD_SYNC

    verdict = judge_stacks(job(mesh, at), mesh, 8)
    node = mesh.rank({"dp": 2, "pp": 1, "ep": 3, "tp": 0}) // 8
    assert [one.nodes for one in verdict.blamed] == [(str(node),)]
    assert {one.dims for one in verdict.shared} == {("ep",), ("pp",)}


def test_outliers_on_one_machine_name_it_alone() -> None:
    stacks = [process(rank, scenes.TP_GATHER if 8 <= rank < 16 else scenes.GRAD_SYNC) for rank in range(64)]
    verdict = judge_stacks(stacks, Mesh.parse("dp=8,tp=8"), 8)
    assert (blamed(verdict), verdict.blamed[0].nodes, verdict.shared) == ([tuple(range(8, 16))], ("1",), ())


def test_a_skipped_collective_shows_in_the_line_that_calls() -> None:
    skipped = (("all_reduce", scenes.C10D, 2800), ("train_step", "train.py", 41), ("main", "train.py", 90))
    usual = (("all_reduce", scenes.C10D, 2795), ("train_step", "train.py", 37), ("main", "train.py", 90))
    moving = [(("all_reduce", scenes.C10D, 2700 + rank), *usual[1:]) for rank in range(8)]
    stacks = [process(rank, skipped if rank == 6 else moving[rank]) for rank in range(8)]
    verdict = judge_stacks(stacks, None, 4)
    assert blamed(verdict) == [(6,)]
    assert "by line" in verdict.blamed[0].reason


def test_native_symbols_are_looked_at_where_nothing_else_differs() -> None:
    def at(symbol: str) -> Calls:
        return ((symbol, "libcudart.so.12", 0), ("clip_grad_norm", "optim.py", 9), *scenes.MAIN)

    stacks = [process(rank, at("cudaStreamSynchronize" if rank != 2 else "cudaMalloc")) for rank in range(8)]
    verdict = judge_stacks(stacks, None, 1)
    assert blamed(verdict) == [(2,)]


def test_the_thread_that_runs_the_backward_pass_counts() -> None:
    def rank(number: int, calls: Calls) -> ProcessStacks:
        main = (("_engine_run_backward", "torch/autograd/graph.py", 820), *scenes.MAIN)
        threads = (
            ThreadStack(frames=scenes.frames(main), name="MainThread", is_main=True),
            ThreadStack(frames=scenes.frames((*calls, ("apply", "torch/autograd/function.py", 300)))),
            ThreadStack(frames=(Frame(function="wait", file="threading.py", line=1),), name="Thread-1"),
        )
        return ProcessStacks(rank=number, threads=threads)

    stacks = [rank(number, scenes.DEADLOCK[:2] if number == 1 else scenes.TP_GATHER[:2]) for number in range(4)]
    assert blamed(judge_stacks(stacks, None, 1)) == [(1,)]


def test_a_rank_that_gave_no_stack_is_suspected_where_all_others_wait() -> None:
    stacks = [process(rank, scenes.GRAD_SYNC) for rank in range(15)]
    stacks.append(ProcessStacks(rank=15, unread="no such process"))
    verdict = judge_stacks(stacks, None, 4)
    assert (blamed(verdict), verdict.blamed[0].evidence) == ([(15,)], ("rank 15: no such process",))
    assert verdict.notes[0] == "ranks 15 not read: no such process"
    missing = judge_stacks(stacks[:15], Mesh.parse("dp=16"), 4)
    assert (blamed(missing), missing.blamed[0].confidence) == ([(15,)], 0.5)


def test_many_without_a_stack_are_a_failure_to_read() -> None:
    stacks = [process(rank, scenes.GRAD_SYNC) for rank in range(4)]
    stacks += [ProcessStacks(rank=rank, unread="py-spy is not there") for rank in range(4, 16)]
    assert judge_stacks(stacks, None, 4).blamed == ()


def test_fewer_than_two_stacks_name_no_rank() -> None:
    waits = process(0, scenes.GRAD_SYNC)
    assert judge_stacks([waits], Mesh.parse("dp=2"), 1).blamed == ()
    assert judge_stacks([waits, ProcessStacks(rank=1, unread="no such process")], None, 1).blamed == ()
    assert judge_stacks([process(0, scenes.DEADLOCK)], Mesh.parse("dp=2"), 1).blamed == ()


def test_a_job_that_runs_blames_nobody() -> None:
    draw = random.Random(5)
    places = [scenes.FORWARD, scenes.TP_GATHER, scenes.DEADLOCK, (("backward", "x.py", 1), *scenes.MAIN)]
    stacks = [process(rank, draw.choice(places)) for rank in range(32)]
    assert judge_stacks(stacks, FIG_7, 2).blamed == ()


def test_who_waits_alone_while_most_compute_is_not_to_blame() -> None:
    stacks = [process(rank, scenes.GRAD_SYNC if rank in (3, 11) else scenes.FORWARD) for rank in range(16)]
    assert judge_stacks(stacks, None, 8).blamed == ()


def test_all_wait_for_data() -> None:
    stacks = [process(rank, scenes.GRAD_SYNC if rank == 3 else scenes.DATA) for rank in range(8)]
    verdict = judge_stacks(stacks, None, 8)
    assert verdict.blamed == ()
    assert "its data" in verdict.notes[0]


def test_machines_are_called_what_processes_call_them() -> None:
    stacks = [
        process(rank, scenes.DEADLOCK if rank == 5 else scenes.GRAD_SYNC, node=f"host-{rank // 4}") for rank in range(8)
    ]
    assert judge_stacks(stacks, None, None).blamed[0].nodes == ("host-1",)


def test_nothing_and_no_rank() -> None:
    assert judge_stacks([], None, None).notes == ("no process looks like a rank",)
    assert judge_stacks([process(None, scenes.DEADLOCK)], None, None).blamed == ()


def test_ten_thousand_ranks_take_a_moment() -> None:
    mesh = Mesh.megatron(tp=8, pp=4, dp=300)
    stacks = job(mesh, stages)
    stacks[4321] = process(4321, scenes.DEADLOCK)
    assert blamed(judge_stacks(stacks, mesh, 8)) == [(4321,)]


def test_a_machine_that_says_nothing_is_told_from_single_ranks_that_could_not_be_read() -> None:
    mesh = Mesh.parse("dp=8,tp=8")
    stacks = [process(rank, scenes.GRAD_SYNC) for rank in range(64) if rank // 8 != 3]
    slow_to_answer = (5, 50)
    stacks = [
        ProcessStacks(rank=one.rank, unread="py-spy did not answer in time") if one.rank in slow_to_answer else one
        for one in stacks
    ]
    verdict = judge_stacks(stacks, mesh, 8)
    assert (blamed(verdict), verdict.blamed[0].nodes) == ([tuple(range(24, 32))], ("3",))
    read = [process(rank, scenes.GRAD_SYNC) for rank in range(64) if rank not in slow_to_answer]
    unread = [ProcessStacks(rank=rank, unread="py-spy did not answer in time") for rank in slow_to_answer]
    assert judge_stacks([*read, *unread], mesh, 8).blamed == ()


def test_a_rank_that_waits_for_data_while_others_read_a_number_from_the_device() -> None:
    norm: Calls = (("get_grad_norm_fp32", "megatron/core/optimizer/clip_grads.py", 121), *scenes.MAIN)
    loss: Calls = (("reduce_loss", "train.py", 31), *scenes.MAIN)
    stacks = job(Mesh.parse("dp=2,tp=8"), lambda where: loss if where["dp"] else norm)
    stacks[11] = process(11, scenes.DATA)
    assert blamed(judge_stacks(stacks, None, 8)) == [(11,)]


def test_who_waits_for_another_stage_does_not_name_its_own_machine_alone() -> None:
    stacks = job(MEGATRON, lambda where: scenes.GRAD_SYNC)
    for rank in MEGATRON.group_of(8, "tp"):
        stacks[rank] = process(rank, scenes.IRECV)
    verdict = judge_stacks(stacks, MEGATRON, 8)
    assert [one.nodes for one in verdict.blamed] == [("1", "5", "9", "13")]
    assert verdict.shared[0].outliers == tuple(range(8, 16))
