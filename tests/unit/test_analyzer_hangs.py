"""From standing still to a finding: what is asked, how long answers are awaited, and who is given longer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import events
from holdfast.desired import TraceWanted
from holdfast.event_parts import RankProgress, StepSample
from holdfast.events import (
    AnyEvent,
    CollectiveTrace,
    Event,
    HangFound,
    HangSuspected,
    JobFinished,
    JobTraced,
    Progress,
    RanksFinished,
    StackDump,
    StepsMeasured,
)
from holdfast.finding_policies import HangPolicy
from holdfast.hangs.observed import CollectiveRecord, Frame, ProcessGroup, ProcessStacks, RankTrace, ThreadStack
from holdfast.ids import named_id, uuid7
from holdfast.requests import TraceJob
from holdfast.service import Effect
from holdfast_analyzer.progress_watch import ProgressWatch, Standing
from holdfast_analyzer.service import Analyzer

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("a", "b", "c", "d")
Calls = tuple[tuple[str, str], ...]
WAITS: Calls = (
    ("wait", "/torch/distributed/distributed_c10d.py"),
    ("all_reduce", "/torch/distributed/distributed_c10d.py"),
)
STANDS: Calls = (("acquire", "/usr/lib/python3/threading.py"), ("load", "/job/train.py"))


class Scene:
    """An analyzer, and a job of one rank on each of four nodes. JSON lies between them."""

    def __init__(self, policy: HangPolicy | None = None, mesh: str | None = None) -> None:
        self.mesh = mesh
        self.analyzer = Analyzer(hang=policy)
        self.now = START
        self.still_s = 0.0
        self.said: list[Event] = []
        self.wanted: list[TraceWanted] = []
        self.number = 0

    def hear(self, event: AnyEvent) -> None:
        self.adopt(self.analyzer.on_event(events.decode(events.encode(event)), self.now))

    def adopt(self, effect: Effect) -> None:
        self.analyzer.adopt(effect)
        self.said += effect.events
        self.wanted += [order for order in effect.orders if isinstance(order, TraceWanted)]

    def common(self, node: str) -> dict[str, Any]:
        self.number += 1
        return {
            "id": named_id(self.now, self.number),
            "at": self.now,
            "source": f"agent/{node}",
            "node": node,
            "job": "job",
            "generation": 1,
        }

    def second(
        self,
        guilty: int | None = 2,
        *,
        moves: bool = False,
        deaf: bool = False,
        nodes: tuple[str, ...] = NODES,
        steps: int = 20,
        phase: str = "train",
    ) -> None:
        """A second goes by; `guilty` stands outside of the collective that the others wait in. `deaf`: it has heard
        the bus for no longer than that."""
        self.now += timedelta(seconds=1)
        self.still_s = 0.0 if moves else self.still_s + 1.0
        for rank, node in enumerate(NODES):
            inside = guilty is not None and rank != guilty
            progress = RankProgress(
                rank=rank,
                step=20,
                phase=phase,
                steps_done=steps,
                since_change_s=self.still_s,
                since_step_s=self.still_s,
                in_collective=int(inside),
                collective="all_reduce" if inside else "",
            )
            if node in nodes:
                self.hear(
                    Progress(**self.common(node), ranks=(progress,), world_size=4, nproc_per_node=1, mesh=self.mesh)
                )
        self.adopt(self.analyzer.on_time(self.now, self.now if deaf else START))

    def until_asked(self, **how: Any) -> None:
        asked = len(self.wanted)
        while len(self.wanted) == asked:
            assert self.still_s < 1000, "nobody is asked"
            self.second(**how)

    def answer(
        self, *nodes: str, guilty: int | None = 2, others: Calls = WAITS, parts: int = 1, **of_guilty: Any
    ) -> None:
        """These nodes answer what was asked last."""
        trace = self.wanted[-1].id
        for node in nodes or NODES:
            rank = NODES.index(node)
            calls = STANDS if rank == guilty else others
            frames = tuple(Frame(function=function, file=file, line=7) for function, file in calls)
            main = (Frame(function="main", file="/job/train.py", line=9),)
            about: dict[str, Any] = {"state": "S", "cpu_share": 0.0, "io_bytes_per_s": 0.0}
            about |= {"threads": (ThreadStack(frames=(*frames, *main), is_main=True),)}
            about |= of_guilty if rank == guilty else {}
            process = ProcessStacks(rank=rank, node=node, pid=100 + rank, **about)
            for part in range(1, parts + 1):
                self.hear(
                    StackDump(
                        **self.common(node),
                        trace=trace,
                        processes=(process,) if part == 1 else (),
                        part=part,
                        parts=parts,
                    )
                )
            ranks = (RankTrace(rank=rank, node=node, unread="it has no ring of collectives"),)
            self.hear(CollectiveTrace(**self.common(node), trace=trace, origin=START, ranks=ranks))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]


def train(scene: Scene) -> None:
    """Its pace is known: a step each tenth of a second."""
    samples = tuple(StepSample(rank=0, step=step, ended_at=START, duration_s=0.1) for step in range(20))
    scene.hear(StepsMeasured(**scene.common("a"), samples=samples, world_size=4))
    scene.said.clear()


def hanging(policy: HangPolicy | None = None) -> Scene:
    scene = Scene(policy)
    train(scene)
    scene.until_asked()
    return scene


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
    assert found.confidence >= HangPolicy().evict_confidence_min
    assert found.since == START + timedelta(seconds=0) and "is stopped" in found.summary
    assert sum(place.count for place in traced.places) == 4

    for _ in range(10):
        scene.second()
    assert len(scene.of(HangFound)) == 1 and len(scene.wanted) == 1, "it is said once"


def test_a_rank_in_its_own_code_is_named_and_no_machine_is_at_fault() -> None:
    scene = hanging()
    scene.answer()
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.nodes, found.is_machine) == ((2,), ("c",), False)


def test_what_the_tracer_had_no_time_for_speaks_against_nobody() -> None:
    for is_tracers_fault in (True, False):
        scene = hanging()
        scene.answer(threads=(), unread="not read within 0.1 s", is_tracers_fault=is_tracers_fault)
        for _ in range(40):
            scene.second()
            if len(scene.wanted) > len(scene.of(JobTraced)):
                scene.answer(threads=(), unread="not read within 0.1 s", is_tracers_fault=is_tracers_fault)
        assert scene.of(HangFound)[0].is_machine is not is_tracers_fault, is_tracers_fault


def test_a_rank_that_works_is_given_longer_and_not_for_ever() -> None:
    scene = hanging(HangPolicy(working_s=40.0))
    asked_at = [scene.still_s]
    scene.answer(cpu_share=0.9)
    assert scene.of(JobTraced)[-1].working == (2,) and not scene.of(HangFound)
    while not scene.of(HangFound):
        scene.until_asked()
        asked_at.append(scene.still_s)
        scene.answer(cpu_share=0.9)
    assert asked_at == [asked_at[0], *(min(asked_at[0] * 2**times, 40.0) for times in range(1, len(asked_at)))]
    assert scene.of(HangFound)[0].still_s == 40.0


def test_one_that_has_stopped_working_is_found_at_the_next_look() -> None:
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


def test_ranks_that_wait_for_nobody_and_stand_alike_are_given_longer() -> None:
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


def test_a_job_that_has_made_no_step_yet_may_go_on_for_ever_unless_somebody_waits() -> None:
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


def test_those_who_wait_for_ranks_that_have_ended_are_found() -> None:
    scene = Scene()
    train(scene)
    scene.second()
    scene.hear(RanksFinished(**scene.common("c"), ranks=(2,)))
    scene.until_asked(nodes=("a", "b", "d"))
    scene.answer("a", "b", "d")
    (found,) = scene.of(HangFound)
    assert not found.is_machine and scene.of(JobTraced)[0].unanswered == ()


def test_a_rank_that_writes_while_a_thread_of_it_waits_is_given_longer_in_a_checkpoint() -> None:
    for phase, is_found in (("checkpoint", False), ("train", True)):
        scene = Scene()
        train(scene)
        scene.until_asked(guilty=4, phase=phase)
        scene.answer(others=WAITS, guilty=2, io_bytes_per_s=1e6)
        assert bool(scene.of(HangFound)) is is_found, phase


def test_waits_that_no_ledger_shows_are_seen_in_the_stacks() -> None:
    scene = Scene()
    train(scene)
    scene.until_asked(guilty=None)
    scene.answer(guilty=None, others=WAITS)
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.still_s) == ((), 5.0), "all wait, and nothing tells for whom"


def test_a_node_that_does_not_answer_is_asked_again_before_it_is_blamed() -> None:
    scene = hanging()
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(3):
        scene.second()
    assert len(scene.wanted) == 2 and not scene.of(JobTraced)
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(10):
        scene.second()
    (found,), (traced,) = scene.of(HangFound), scene.of(JobTraced)
    assert traced.unanswered == ("c",)
    assert (found.nodes, found.ranks, found.is_machine) == (("c",), (2,), True)


def test_answers_come_in_parts_and_of_other_traces() -> None:
    scene = hanging()
    stray = uuid7()
    scene.hear(StackDump(**scene.common("c"), trace=stray, processes=()))
    scene.answer("a", "b", "d", parts=3)
    assert not scene.of(JobTraced)
    scene.answer("c", parts=3, state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_nothing_is_concluded_while_a_node_is_not_heard_of() -> None:
    scene = Scene()
    train(scene)
    scene.second()
    for _ in range(60):
        scene.second(nodes=("a", "b", "d"))
    assert not scene.wanted
    scene.adopt(scene.analyzer.on_time(scene.now, None))
    assert not scene.wanted


def test_an_effect_that_is_not_committed_comes_again() -> None:
    scene = Scene()
    train(scene)
    for _ in range(3):
        scene.second()
    scene.now += timedelta(seconds=0.1)
    scene.still_s += 1
    for rank, node in enumerate(NODES):
        inside = rank != 2
        told = RankProgress(
            rank=rank, step=20, phase="train", steps_done=20, since_change_s=4.5, in_collective=int(inside)
        )
        scene.hear(Progress(**scene.common(node), ranks=(told,), world_size=4, nproc_per_node=1))
    lost = scene.analyzer.on_time(scene.now, START)
    again = scene.analyzer.on_time(scene.now, START)
    if scene.wanted:
        assert not lost.events and not again.events, "it was asked already"
        return
    assert lost.events and lost == again
    scene.adopt(again)
    assert scene.analyzer.on_time(scene.now, START).is_nothing


def test_a_person_may_look_at_any_time() -> None:
    scene = Scene()
    train(scene)
    scene.second(moves=True)
    request = TraceJob(id=uuid7(), asked_by="ada", job="job")
    effect = scene.analyzer.on_request(request, scene.now)
    assert effect.answer.accepted
    scene.adopt(effect)
    assert scene.wanted[0].id == request.id
    other = scene.analyzer.on_request(TraceJob(id=uuid7(), asked_by="bob", job="job"), scene.now)
    assert not other.answer.accepted and "being traced just now" in other.answer.message
    scene.answer(guilty=None)
    (traced,) = scene.of(JobTraced)
    assert (traced.trace, traced.asked_by, traced.processes) == (request.id, "ada", 4)
    assert not scene.of(HangFound) and not scene.of(HangSuspected)


def test_jobs_that_are_not_there_are_not_traced() -> None:
    scene = Scene()
    train(scene)
    scene.second()

    def refusal(job: str) -> str:
        answer = scene.analyzer.on_request(TraceJob(id=uuid7(), asked_by="ada", job=job), scene.now).answer
        assert not answer.accepted
        return answer.message

    assert "no agent tells of a job other" in refusal("other")
    scene.now += timedelta(seconds=30)
    assert "4 of 4 nodes of job job tell nothing of their ranks now: a, b, c, d;" in refusal("job")
    scene.second(moves=True, nodes=("a", "b", "d"))
    assert "1 of 4 nodes of job job tell nothing of their ranks now: c;" in refusal("job")
    finished = JobFinished(
        id=uuid7(), at=scene.now, source="controller", job="job", outcome="completed", exit_code=0, reason="done"
    )
    scene.hear(finished)
    assert "job job is over" in refusal("job")


def test_words_of_long_ago_are_none_of_now() -> None:
    scene = Scene()
    train(scene)
    for rank, node in enumerate(NODES):
        old = scene.common(node) | {"at": scene.now - timedelta(hours=1)}
        told = RankProgress(rank=rank, step=20, phase="train", steps_done=20, since_change_s=100.0)
        scene.hear(Progress(**old, ranks=(told,), world_size=4, nproc_per_node=1))
    assert scene.analyzer.on_time(scene.now, START).is_nothing


def test_nobody_answers_for_a_node_but_itself() -> None:
    scene = hanging()
    trace = scene.wanted[-1].id
    lies = (ProcessStacks(rank=0, node="a", pid=1, state="T"), ProcessStacks(rank=7, pid=1, state="T"))
    for node in ("stranger", "b"):
        told = RankTrace(rank=0, node="a", entered={"g": 9})
        scene.hear(StackDump(**scene.common(node), trace=trace, processes=lies))
        scene.hear(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=(told,)))
    scene.answer("a", "d")
    assert not scene.of(JobTraced), "one has not answered, whoever else has"
    scene.answer("c", state="T")
    (traced,) = scene.of(JobTraced)
    assert (traced.processes, traced.suspects[0].ranks) == (3, (2,)), "what b says is nothing of its own"


def test_a_part_that_fits_no_other_is_no_answer() -> None:
    scene = hanging()
    scene.answer("a", "b", "d")
    trace = scene.wanted[-1].id
    for part, parts in ((0, 1), (5, 2), (1, 2), (2, 3)):
        scene.hear(StackDump(**scene.common("c"), trace=trace, processes=(), part=part, parts=parts))
    assert not scene.of(JobTraced)
    scene.answer("c", parts=2, state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_an_answer_is_missing_only_if_it_would_have_been_heard() -> None:
    scene = hanging()
    scene.answer("a", "b", "d", guilty=None)
    for _ in range(20):
        scene.second(deaf=True)
    assert len(scene.wanted) == 1 and not scene.of(JobTraced), "the bus was away"
    scene.answer("c", state="T")
    assert scene.of(HangFound)[0].ranks == (2,)


def test_a_finding_is_heard_whatever_the_ranks_call_their_functions() -> None:
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
            scene.hear(StackDump(**scene.common(node), trace=trace, **dump))
        scene.hear(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=()))
    (traced,) = scene.of(JobTraced)
    assert len(events.encode(traced)) < 1 << 19 and scene.of(HangFound)[0].ranks == (2,)


def test_what_could_not_be_committed_is_kept_no_longer_than_the_job() -> None:
    scene = Scene()
    train(scene)
    for _ in range(10):
        scene.second(moves=True)
    for number in range(20):
        scene.analyzer.on_request(TraceJob(id=named_id(START, number), asked_by="ada", job="job"), scene.now)
    assert len(scene.analyzer._to_commit) == 1
    common = scene.common("a") | {"source": "controller", "node": None}
    scene.hear(JobFinished(**common, outcome="completed", exit_code=0, reason="done"))
    assert not scene.analyzer._to_commit


def test_a_job_of_many_nodes_is_looked_at_as_a_whole_only_once_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = hanging()
    looks: list[datetime] = []
    standing = ProgressWatch.standing

    def look(watch: ProgressWatch, step_s: float | None, now: datetime) -> Standing | None:
        looks.append(now)
        return standing(watch, step_s, now)

    monkeypatch.setattr(ProgressWatch, "standing", look)
    scene.answer("a", "b", "d", parts=5)
    assert not looks
    scene.answer("c", parts=5, state="T")
    assert len(looks) == 1 and scene.of(HangFound)


def test_ranks_that_only_a_rank_speaks_of_are_none() -> None:
    scene = Scene(mesh="a mesh that is none")
    train(scene)
    scene.until_asked()
    trace = scene.wanted[-1].id
    for rank, node in enumerate(NODES):
        group = ProcessGroup(name="g", ranks=(0, 1, 2, 3, -1, 1 << 60))
        waits = CollectiveRecord(group="g", sequence=9, operation="all_reduce", is_waited_for=True, created_ns=5)
        told = RankTrace(rank=rank, groups=(group,), records=(waits,), entered={"g": 9}, completed={"g": 8})
        scene.hear(StackDump(**scene.common(node), trace=trace, processes=()))
        scene.hear(CollectiveTrace(**scene.common(node), trace=trace, origin=START, ranks=(told,)))
    (traced,) = scene.of(JobTraced)
    events.decode(events.encode(traced))
    assert {rank for suspect in traced.suspects for rank in suspect.ranks} <= {0, 1, 2, 3}
