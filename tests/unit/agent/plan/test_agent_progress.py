"""What an agent says of the steps of its ranks: the first one, which number it has, and progress."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.events import (
    FirstStep,
    ProcessExited,
    Progress,
)
from holdfast_agent.plan.inputs import (
    Observed,
)
from holdfast_agent.plan.node_state import RankStatus
from tests.scenes.agent import INCIDENT, START, running


def restored(first: int) -> RankStatus:
    return RankStatus(step=first, steps_done=1, first=first, step_source="restored")


def counted(*, is_start_known: bool = True) -> RankStatus:
    return RankStatus(
        step=0, steps_done=1, first=0, is_numbered=False, step_source="optimizer", is_start_known=is_start_known
    )


def test_the_first_step_is_said_once_when_every_rank_has_it() -> None:
    scene = running(incident=INCIDENT)
    scene.observe(1, 0)
    assert scene.said(FirstStep) == []
    scene.observe(3, 1)
    (first,) = scene.said(FirstStep)
    assert (first.step, first.completed_at) == (50, START + timedelta(seconds=1))
    assert first.incident == INCIDENT
    scene.observe(4, 2)
    assert scene.said(FirstStep) == []
    # What happens after it is no longer part of the incident that led to this generation.
    scene.end(0, signal=9)
    assert scene.said(ProcessExited)[0].incident is None


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "step", "source", "is_known"),
    [
        # One rank reads the checkpoint for all.
        (restored(300), counted(), 300, "restored", True),
        (counted(), restored(300), 300, "restored", True),
        (counted(), counted(), 0, "optimizer", True),
        # That something was restored is more than one rank can know.
        (counted(), counted(is_start_known=False), 0, "optimizer", False),
        (restored(300), counted(is_start_known=False), 300, "restored", True),
    ],
)
def test_the_first_step_is_that_of_the_rank_that_knows_most(
    of_rank_0: RankStatus, of_rank_1: RankStatus, step: int, source: str, is_known: bool
) -> None:
    scene = running()
    scene.see(Observed, statuses={0: of_rank_0, 1: of_rank_1}, cut_off_s=None)
    (first,) = scene.said(FirstStep)
    assert (first.step, first.step_source, first.is_start_known) == (step, source, is_known)


def test_a_rank_that_only_serves_others_has_no_first_step_of_its_own() -> None:
    scene = running()
    serves = RankStatus(is_start_known=False)

    def seen(steps: int) -> list[FirstStep]:
        served = RankStatus(
            step=steps + 8, steps_done=steps, first=9, step_source="restored", first_step_at=START if steps else None
        )
        scene.see(Observed, statuses={0: served, 1: serves}, cut_off_s=None)
        return scene.said(FirstStep)

    assert seen(19) == []
    (first,) = seen(20)
    assert (first.step, first.step_source, first.is_start_known) == (9, "restored", True)


def test_progress_is_said_about_once_a_second() -> None:
    scene = running()
    said = 0
    for _ in range(30):
        scene.observe(1, 1)
        said += len(scene.said(Progress))
        scene.now += timedelta(seconds=0.1)
    assert said == 4


def test_progress_tells_for_how_long_each_rank_has_noted_nothing() -> None:
    scene = running()
    waits = RankStatus(
        step=9,
        steps_done=10,
        changed_at=scene.now - timedelta(seconds=7),
        stepped_at=scene.now - timedelta(seconds=8),
        collectives=12,
        in_flight=1,
        collective="all_reduce",
    )
    ahead = RankStatus(step=9, steps_done=10, changed_at=scene.now + timedelta(seconds=1), collective="all_reduce")
    scene.see(Observed, statuses={0: waits, 1: ahead})
    (said,) = scene.said(Progress)
    first, second = said.ranks
    assert (said.world_size, said.nproc_per_node) == (2, 2)
    assert (first.since_change_s, first.since_step_s, first.steps_done) == (7.0, 8.0, 10)
    assert (first.in_collective, first.collective, first.collectives) == (1, "all_reduce", 12)
    assert (second.since_change_s, second.collective) == (0.0, ""), "a clock that was set back counts as none"
