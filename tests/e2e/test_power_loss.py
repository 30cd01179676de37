"""Everything loses power at one stroke and is started again: the job comes back by itself, and no node is blamed."""

from __future__ import annotations

import os

import pytest
from cluster import Cluster
from records import check_record

pytestmark = pytest.mark.e2e

TRIALS = 10 if "HOLDFAST_LONG" in os.environ else 1


@pytest.mark.timeout(120 + 60 * TRIALS)
def test_a_job_comes_back_after_every_loss_of_power(holdfast: Cluster) -> None:
    # From here on it starts again at its first step: its losses are within one incident until it has passed step 30.
    job = holdfast.run("--checkpoint-every", "1000")
    job.until_step(30)
    job.kill_ranks(0, 2)
    job.until_step(3, generation=2)
    assert job.step() < 30
    for _ in range(TRIALS):
        generation, members = job.generation(), holdfast.members(job)
        holdfast.lose_power()
        holdfast.up()
        job.until_step(3, generation=generation + 1)
        assert holdfast.members(job) == members
        assert not [name for name, node in holdfast.nodes().items() if node["blocked_until"] is not None]
    job.until_step(40)
    job.finish()
    check_record(holdfast, job)
    assert {row["outcome"] for row in holdfast.incidents(job)} == {"recovered"}


def test_steps_that_only_memory_had_are_counted_as_lost(holdfast: Cluster) -> None:
    steps = ("--keep-bytes", "1000000", "--checkpoint-every", "0")
    job = holdfast.run(*steps, nproc=1, options=("--mesh", "dp=2", "--persist-every", "20"))
    holdfast.until("the disk has a step", lambda: holdfast.events(job, "checkpoint_saved"))
    job.until_step(job.step() + 5)
    holdfast.lose_power()
    reached = max(note.step for rank in (0, 1) for note in job.trained(rank))
    holdfast.up()
    job.until_step(reached + 5, generation=2)
    restored = next(note.step for note in job.trained(0) if note.generation == 2) - 1
    assert 0 < restored < reached and restored % 20 == 0
    (closed,) = holdfast.until("the incident is closed", lambda: holdfast.events(job, "incident_closed"))
    # A rank may have completed a step that it did not come to note.
    assert closed["lost_steps"] in (reached - restored, reached - restored + 1)
    assert f"{closed['lost_steps']} steps were lost: the job went on from step {restored}" in closed["reason"]
    (lost,) = holdfast.events(job, "steps_lost")
    assert (lost["step"], lost["newest_step"]) == (restored, restored + closed["lost_steps"])
    job.finish()
    check_record(holdfast, job)
