"""From standing still to a finding: what is asked, how long answers are awaited, and who is given longer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import events
from holdfast.events import (
    CollectiveTrace,
    HangFound,
    HangSuspected,
    JobFinished,
    JobTraced,
    RanksFinished,
    StackDump,
)
from holdfast.events.parts.traces import Frame, ProcessStacks, ThreadStack
from holdfast.fresh_ids import uuid7
from holdfast.requests import TraceJob
from holdfast.settings.findings.hang import HangPolicy
from tests.scenes.hang import NODES, STANDS, START, WAITS, Calls, Scene, hanging, train


def test_a_rank_that_is_stopped_is_named_once_every_node_has_answered() -> None:
    scene = hanging()
    (suspected,) = scene.of(HangSuspected)
    assert (suspected.sign, suspected.standing, suspected.waiting) == ("waiting", (2,), (0, 1, 3))
    assert 3.0 <= suspected.still_s <= 4.0
    (wanted,) = scene.wanted
    assert (wanted.job, wanted.generation, wanted.id) == ("job", 1, suspected.trace)

    scene.answer("a", "b", "d")
    assert not scene.of(JobTraced), "one has not answered, and there is time"
    scene.answer("c", state="T")
    (traced,), (found,) = scene.of(JobTraced), scene.of(HangFound)
    assert traced.trace == found.trace == suspected.trace and traced.cause == suspected.id
    assert (found.ranks, found.nodes, found.scope, found.is_machine) == ((2,), ("c",), "machine", True)
    assert found.is_by_signal, "the script may have sent it"
    assert found.confidence >= HangPolicy().evict_confidence_min
    assert found.since == START + timedelta(seconds=0) and "is stopped" in found.summary
    assert sum(place.count for place in traced.places) == 4

    for _ in range(10):
        scene.second()
    assert len(scene.of(HangFound)) == 1 and len(scene.wanted) == 1, "it is emitted once"


@pytest.mark.parametrize(
    ("waits_in", "symptom"),
    [
        ("fuse_get_req", "filesystem_mount"),
        ("rpc_wait_bit_killable", "filesystem_mount"),
        ("folio_wait_bit_common", ""),  # of a disk, or of a mount
        ("uvm_va_space_down_write", ""),  # of the driver
        ("", ""),
    ],
)
def test_a_rank_that_waits_for_a_mount_names_it(waits_in: str, symptom: str) -> None:
    scene = hanging()
    scene.answer(state="D", waits_in=waits_in)
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.is_machine, found.symptom) == ((2,), True, symptom)
    assert not found.is_by_signal


def test_a_rank_in_its_own_code_is_named_and_no_machine_is_at_fault() -> None:
    scene = hanging()
    scene.answer()
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.nodes, found.is_machine) == ((2,), ("c",), False)


def test_processes_that_the_tracer_had_no_time_for_are_not_blamed() -> None:
    for is_tracers_fault in (True, False):
        scene = hanging()
        scene.answer(threads=(), unread="not read within 0.1 s", is_tracers_fault=is_tracers_fault)
        for _ in range(40):
            scene.second()
            if len(scene.wanted) > len(scene.of(JobTraced)):
                scene.answer(threads=(), unread="not read within 0.1 s", is_tracers_fault=is_tracers_fault)
        assert scene.of(HangFound)[0].is_machine is not is_tracers_fault, is_tracers_fault


@pytest.mark.parametrize("work", [{"cpu_share": 0.9}, {"wakes_per_s": 40.0}], ids=["computes", "waits-again-and-again"])
def test_a_rank_that_works_gets_a_longer_limit(work: dict[str, float]) -> None:
    scene = hanging(HangPolicy(working_s=40.0))
    asked_at = [scene.still_s]
    scene.answer(**work)
    assert scene.of(JobTraced)[-1].working == (2,) and not scene.of(HangFound)
    while not scene.of(HangFound):
        scene.until_asked()
        asked_at.append(scene.still_s)
        scene.answer(**work)
    assert asked_at == [asked_at[0], *(min(asked_at[0] * 2**times, 40.0) for times in range(1, len(asked_at)))]
    assert scene.of(HangFound)[0].still_s == 40.0


def test_a_rank_that_has_stopped_working_is_found_by_the_next_trace() -> None:
    scene = hanging()
    scene.answer(io_bytes_per_s=1e6)
    assert not scene.of(HangFound)
    scene.until_asked()
    scene.answer()
    (found,) = scene.of(HangFound)
    assert found.still_s < 10.0


def test_a_job_that_goes_on_meanwhile_does_not_hang() -> None:
    scene = hanging()
    scene.second(moves=True)
    scene.answer()
    scene.second(moves=True)
    assert not scene.of(HangFound) and not scene.of(JobTraced)
    scene.until_asked()
    scene.answer(state="T")
    assert len(scene.of(HangFound)) == 1, "the next time it does"


def _found_in_next_generation(scene: Scene, **guilty: Any) -> HangFound:
    """Return what is found of a generation that gets as far as the one before."""
    scene.generation += 1
    scene.second(moves=True)
    before = len(scene.of(HangFound))
    while len(scene.of(HangFound)) == before:
        scene.until_asked()
        scene.answer(**guilty)
    found: HangFound = scene.of(HangFound)[-1]
    return found


def test_a_script_that_holds_itself_up_at_the_same_step_again_gets_more_time() -> None:
    scene = hanging()
    scene.answer()
    (first,) = scene.of(HangFound)
    assert first.still_s < 10.0
    limits = [_found_in_next_generation(scene).limit_s for _ in range(3)]
    stills = [found.still_s for found in scene.of(HangFound)[1:]]
    assert limits == [first.limit_s] * 3 and stills == [120.0, 480.0, 600.0]


def test_so_does_one_that_works_there() -> None:
    scene = hanging(HangPolicy(working_s=40.0))
    scene.answer(cpu_share=0.9)
    while not scene.of(HangFound):
        scene.until_asked()
        scene.answer(cpu_share=0.9)
    assert [_found_in_next_generation(scene, cpu_share=0.9).still_s for _ in range(2)] == [160.0, 640.0]


def test_a_rank_that_a_signal_stops_at_the_same_step_again_is_found_as_soon() -> None:
    scene = hanging()
    scene.answer()
    assert _found_in_next_generation(scene, state="T").still_s < 10.0


def test_identical_stacks_without_waits_get_a_longer_limit() -> None:
    scene = Scene()
    train(scene)
    scene.until_asked(guilty=None)
    assert scene.of(HangSuspected)[0].sign == "no_traffic"
    scene.answer(guilty=None, others=STANDS)
    assert not scene.of(HangFound)
    while not scene.of(HangFound):
        scene.until_asked(guilty=None)
        scene.answer(guilty=None, others=STANDS)
    assert scene.of(HangFound)[0].still_s >= HangPolicy().unnamed_s


def test_a_job_before_its_first_step_has_no_limit_unless_a_rank_waits() -> None:
    policy = HangPolicy(start_s=5, start_waiting_s=4, working_s=10, unnamed_s=6)
    cases: list[tuple[int | None, Calls, dict[str, Any], bool]] = [
        (None, STANDS, {}, False),
        (2, WAITS, {"cpu_share": 0.9}, False),
        (2, WAITS, {}, True),
    ]
    for guilty, others, answers, is_found in cases:
        scene = Scene(policy)
        for _ in range(5):
            if not scene.of(HangFound):
                scene.until_asked(guilty=guilty, steps=0)
                scene.answer(guilty=guilty, others=others, **answers)
        assert bool(scene.of(HangFound)) is is_found, (others, answers)
    assert scene.of(HangFound)[0].ranks == (2,)


def test_ranks_that_wait_for_ended_ranks_are_found() -> None:
    scene = Scene()
    train(scene)
    scene.second()
    scene.receive(RanksFinished(**scene.common("c"), ranks=(2,)))
    scene.until_asked(nodes=("a", "b", "d"))
    scene.answer("a", "b", "d")
    (found,) = scene.of(HangFound)
    assert not found.is_machine and scene.of(JobTraced)[0].unanswered == ()


def test_a_rank_that_writes_in_a_checkpoint_while_one_of_its_threads_waits_gets_a_longer_limit() -> None:
    for phase, is_found in (("checkpoint", False), ("train", True)):
        scene = Scene()
        train(scene)
        scene.until_asked(guilty=4, phase=phase)
        scene.answer(others=WAITS, guilty=2, io_bytes_per_s=1e6)
        assert bool(scene.of(HangFound)) is is_found, phase


def test_waits_outside_of_the_ledger_show_in_the_stacks() -> None:
    scene = Scene()
    train(scene)
    scene.until_asked(guilty=None)
    scene.answer(guilty=None, others=WAITS)
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.still_s) == ((), 5.0), "all wait, and nothing tells for whom"


def test_a_person_may_request_a_trace_at_any_time() -> None:
    scene = Scene()
    train(scene)
    scene.second(moves=True)
    request = TraceJob(id=uuid7(), asked_by="ada", job="job")
    effect = scene.analyzer.on_request(request, scene.now)
    assert effect.answer.accepted
    scene.adopt(effect)
    assert scene.wanted[0].id == request.id
    other = scene.analyzer.on_request(TraceJob(id=uuid7(), asked_by="bob", job="job"), scene.now)
    assert not other.answer.accepted and "being traced now" in other.answer.message
    scene.answer(guilty=None)
    (traced,) = scene.of(JobTraced)
    assert (traced.trace, traced.asked_by, traced.processes) == (request.id, "ada", 4)
    assert not scene.of(HangFound) and not scene.of(HangSuspected)


def test_unknown_jobs_are_not_traced() -> None:
    scene = Scene()
    train(scene)
    scene.second()

    def refusal(job: str) -> str:
        answer = scene.analyzer.on_request(TraceJob(id=uuid7(), asked_by="ada", job=job), scene.now).answer
        assert not answer.accepted
        return answer.message

    assert "no agent reports a job other" in refusal("other")
    scene.now += timedelta(seconds=30)
    assert "4 of 4 nodes of job job do not report now: a, b, c, d;" in refusal("job")
    scene.second(moves=True, nodes=("a", "b", "d"))
    assert "1 of 4 nodes of job job do not report now: c;" in refusal("job")
    finished = JobFinished(
        id=uuid7(), at=scene.now, source="controller", job="job", outcome="completed", exit_code=0, reason="done"
    )
    scene.receive(finished)
    assert "job job is over" in refusal("job")


def test_function_names_of_any_length_do_not_keep_back_a_finding() -> None:
    scene = hanging()
    trace, name = scene.wanted[-1].id, "\x01" * 240
    for rank, node in enumerate(NODES):
        state = "T" if rank == 2 else "S"
        processes = [ProcessStacks(rank=rank, pid=1, state=state, cpu_share=0.0, io_bytes_per_s=0.0)]
        for at in range(8):
            file = f"/job/{name}{rank}{at}.py"
            calls = tuple(Frame(function=f"{name}{call}", file=file, line=call) for call in range(20))
            stack = ThreadStack(frames=calls, is_main=True)
            processes.append(ProcessStacks(kind="data_loader", rank=rank, pid=at, threads=(stack,)))
        for part, process in enumerate(processes, start=1):
            dump = {"processes": (process,), "part": part, "parts": len(processes)}
            scene.receive(StackDump(**scene.common(node), trace=trace, **dump))
        scene.receive(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=()))
    (traced,) = scene.of(JobTraced)
    assert len(events.encode(traced)) < 1 << 19 and scene.of(HangFound)[0].ranks == (2,)
