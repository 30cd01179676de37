"""Which jobs are replayed: a replay of steps that only memory has begins at the job's beginning."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.events import StepsKept
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.plan.replay_scope import can_replay
from tests.scenes.failing_job import FailingJob


@pytest.mark.parametrize(
    ("step", "is_on_disk", "is_replayed"), [(500, False, True), (1500, False, False), (1500, True, True)]
)
def test_it_comes_to_the_fault(step: int, is_on_disk: bool, is_replayed: bool) -> None:
    job = FailingJob(("a", "b", "c"))
    job.train()
    for node in ("a", "b", "c"):
        job.send(StepsKept, node=node, job="job", generation=job.state.generation, step=1, kept_for="any_ranks")
    policy = LadderPolicy(replay_steps_max=1000)
    state = msgspec.structs.replace(job.state, step=step, has_checkpoints=is_on_disk)
    assert can_replay(state, policy) == is_replayed
    assert not can_replay(msgspec.structs.replace(state, first_kept_step=None, has_checkpoints=False), policy)
