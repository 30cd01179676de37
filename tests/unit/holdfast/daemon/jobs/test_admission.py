"""A service takes what nodes publish about a job from the job's own nodes only, in whichever order it arrives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from holdfast.daemon.jobs.early_events import KEPT, OF_NODE_MAX
from holdfast.daemon.jobs.job_nodes import GENERATIONS_KEPT
from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect
from holdfast.events import (
    AnyEvent,
    ChecksStarted,
    Event,
    HangSuspected,
    JobFinished,
    LogSignature,
    NodesReleased,
    RanksFinished,
    ReplayStarted,
    StepsMeasured,
    StepTimeMeasured,
)
from holdfast.events.parts.samples import StepSample
from holdfast.fresh_ids import uuid7
from holdfast.settings.load import Settings
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from tests.scenes.fed_service import NOW, FedService, begun, of


class Noting(Decider):
    """A service that notes what it is given."""

    name = "analyzer"
    handles = (LogSignature, RanksFinished)
    knows_nodes = True

    def __init__(self) -> None:
        self.given: list[str] = []

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if isinstance(event, LogSignature):
            if event.signature == "trouble":
                raise ValueError("it cannot be handled")
            self.given.append(event.signature)
        return Effect()


class Scene:
    def __init__(self) -> None:
        self.decider = Noting()
        self.service = FedService(self._make, "analyzer")

    def _make(self) -> Noting:
        self.decider = Noting()
        return self.decider

    async def given(self, *received: AnyEvent) -> list[str]:
        self.decider.given.clear()
        await self.service.feed(*received)
        return self.decider.given


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.service.start()
    return made


def line(node: str, generation: int = 1, name: str = "line", job: str = "job") -> Any:
    return of(node, LogSignature, generation, job, rank=0, signature=name, stream="err")


def decided(kind: type[Event], generation: int, **fields: Any) -> Any:
    return kind(id=uuid7(), at=NOW, source="controller", job="job", generation=generation, reason="r", **fields)


async def test_what_another_node_publishes_is_ignored(scene: Scene) -> None:
    assert await scene.given(begun(1, "ab"), line("c"), line("a", name="of a")) == ["of a"]


async def test_a_node_that_has_left_is_heard_about_its_own_generations_only(scene: Scene) -> None:
    await scene.given(begun(1, "ab"), begun(2, "ac"))
    assert await scene.given(line("b", 1, "late"), line("b", 2, "forged")) == ["late"]


async def test_an_event_may_arrive_before_its_generation_and_keeps_its_place(scene: Scene) -> None:
    assert not await scene.given(line("a", name="1"), line("c", name="forged"), line("b", name="2"))
    assert await scene.given(begun(1, "ab"), line("a", name="3")) == ["1", "2", "3"]


async def test_checks_and_replays_are_generations_too(scene: Scene) -> None:
    await scene.given(begun(1, "ab"), decided(ChecksStarted, 2, suite="s", nodes=("a",), deadline_s=1.0))
    assert await scene.given(line("a", 2, "checked"), line("b", 2, "forged")) == ["checked"]
    groups = (("a",), ("b",))
    await scene.given(
        decided(ReplayStarted, 3, phase="horizontal", groups=groups, mesh="dp=1", until_step=1, deadline_s=1.0)
    )
    assert await scene.given(line("b", 3, "replayed")) == ["replayed"]


async def test_a_service_that_starts_again_knows_the_nodes(scene: Scene) -> None:
    await scene.given(begun(1, "ab"))
    await scene.service.start()
    assert await scene.given(line("c"), line("b", name="of b")) == ["of b"]


async def test_a_node_that_has_joined_may_keep_shards_of_earlier_generations(scene: Scene) -> None:
    await scene.given(begun(1, "ab"), begun(2, "ac"))
    assert await scene.given(line("c", 1, "fetched"), line("d", 1, "forged")) == ["fetched"]


async def test_nodes_that_have_left_long_ago_are_forgotten(scene: Scene) -> None:
    for generation in range(1, GENERATIONS_KEPT + 2):
        await scene.given(begun(generation, "ab" if generation == 1 else "ac"))
    assert await scene.given(line("b", 1, "of b"), line("a", 1, "of a")) == ["of a"]


async def test_a_node_that_was_released_before_a_generation_had_it_may_report_that_it_runs_no_ranks(
    scene: Scene,
) -> None:
    await scene.given(begun(1, "ab"), decided(NodesReleased, 1, nodes=("c",)))
    assert await scene.given(line("c", 1, "runs none"), line("c", 2, "forged"), begun(2, "ab")) == ["runs none"]


async def test_nodes_that_are_released_before_anything_has_begun_say_nothing_about_its_members(scene: Scene) -> None:
    await scene.given(decided(NodesReleased, 0, nodes=("c",)))
    assert await scene.given(line("a", name="of a"), begun(1, "ab"), line("c", name="forged")) == ["of a"]


async def test_generations_may_arrive_in_another_order(scene: Scene) -> None:
    await scene.given(begun(2, "ac"), begun(1, "ab"))
    assert await scene.given(line("a", 2, "of a"), line("b", 1, "of b"), line("b", 2, "forged")) == ["of a", "of b"]


async def test_the_last_events_of_a_finished_job_are_taken(scene: Scene) -> None:
    await scene.given(begun(1, "ab"), decided(JobFinished, 1, outcome="completed", exit_code=0))
    assert await scene.given(line("a", name="last"), line("c", name="forged")) == ["last"]


async def test_a_node_cannot_fill_the_room_of_others(scene: Scene) -> None:
    await scene.given(*(line("c", 10**9) for _ in range(OF_NODE_MAX + 5)), line("a", name="of a"))
    assert await scene.given(begun(1, "ab")) == ["of a"]


async def test_what_waits_for_too_long_gives_its_room_up(scene: Scene) -> None:
    await scene.given(*(line("a", 7) for _ in range(OF_NODE_MAX)))
    scene.service.pass_time(KEPT.total_seconds() + 1)
    assert not await scene.given(line("a", 1, "of a"))
    assert await scene.given(begun(1, "ab")) == ["of a"]


async def test_an_early_event_that_cannot_be_handled_is_a_dead_letter(scene: Scene) -> None:
    assert await scene.given(line("a", name="trouble"), line("a", name="next"), begun(1, "a")) == ["next"]
    assert any("log_signature" in subject or "deadletter" in subject for subject in scene.service.rejections())


async def test_the_figures_of_another_node_are_not_those_of_a_job() -> None:
    """A real engine: the pace of the job stays what its own node has measured."""
    service = FedService(lambda: Analyzer(engines_of(Settings())), "analyzer")
    await service.start()

    def steps(node: str, first: int, duration_s: float) -> Any:
        samples = tuple(
            StepSample(rank=0, step=step, ended_at=NOW, duration_s=duration_s) for step in range(first, first + 20)
        )
        return of(node, StepsMeasured, 1, samples=samples, world_size=1)

    await service.feed(begun(1, "a"), steps("a", 0, 0.5), steps("c", 1000, 60.0), steps("a", 20, 0.5))
    paces = {made.median_s for made in service.made if isinstance(made, StepTimeMeasured)}
    assert paces == {0.5}
    assert not [made for made in service.made if isinstance(made, HangSuspected)]
