"""What the command that follows a training job reports at its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.bus.in_memory import MemoryBroker
from holdfast.cli.follow.training_job import TrainingJobFollower
from holdfast.events import CheckpointSaved, ProcessExited, Progress, StepsKept
from holdfast.events.parts.ranks import RankProgress
from holdfast.fresh_ids import uuid7
from tests.scenes.fed_service import NOW, begun, of


async def test_steps_that_are_only_in_the_memory_of_a_cluster_that_ends_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common: dict[str, Any] = {"at": datetime(2026, 1, 1, tzinfo=UTC), "source": "agent/n", "node": "n", "job": "job"}
    follower = TrainingJobFollower("job", MemoryBroker().client("run"), "postgresql://nowhere")

    async def ended() -> str:
        return "by itself"

    def reported() -> str:
        capsys.readouterr()
        follower._show_what_is_lost()
        return capsys.readouterr().err

    follower.take(Progress(id=uuid7(), **common, ranks=(RankProgress(rank=0, step=199, phase="step"),)))
    follower.own_cluster_ended = ended
    assert not reported(), "the script saves its steps itself"
    follower.take(StepsKept(id=uuid7(), **common, step=1))
    assert "no step is on the disk, of 199 done" in reported()
    follower.take(CheckpointSaved(id=uuid7(), **common, step=150, path="/d", checkpoint_bytes=1, took_s=0.1))
    assert "step 150 is on the disk, of 199 done" in reported()
    follower.own_cluster_ended = None
    assert not reported(), "the next job finds them"
    follower.own_cluster_ended = ended
    follower.take(CheckpointSaved(id=uuid7(), **common, step=199, path="/d", checkpoint_bytes=1, took_s=0.1))
    assert not reported()


async def test_what_a_node_publishes_about_the_job_of_others_is_not_shown() -> None:
    follower = TrainingJobFollower("job", MemoryBroker().client("run"), "postgresql://nowhere")
    exited: dict[str, Any] = {"rank": 0, "local_rank": 0, "exit_code": 1, "exited_at": NOW}

    def is_shown(node: str, generation: int) -> bool:
        return follower.is_of_own_node(of(node, ProcessExited, generation, **exited))

    assert is_shown("z", 1), "a command that attaches does not know the nodes yet"
    assert follower.is_of_own_node(begun(2, "ab"))
    assert [is_shown(node, generation) for node, generation in (("a", 2), ("z", 2), ("z", 9))] == [True, False, False]
    assert follower.is_of_own_node(begun(3, "ac"))
    assert [is_shown(node, generation) for node, generation in (("b", 2), ("b", 3), ("c", 3))] == [True, False, True]
