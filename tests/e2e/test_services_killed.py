"""kill -9 of each part of the cluster, in the middle of training and in the middle of a recovery."""

from __future__ import annotations

import pytest
from cluster import Cluster
from job import Job
from records import check_record, check_steps

pytestmark = pytest.mark.e2e

PARTS = ("controller", "standby", "historian", "analyzer", "ckpt", "nats", "postgres")
DECIDING = (("controller",), ("standby", "historian"), ("nats",), ("postgres",), PARTS)
"""What is killed together: none of the two asks the other for anything. The last is the whole control plane, as by a
loss of power at its machine.
"""


def test_training_does_not_notice(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    before = job.pids()
    for part in PARTS:
        killed = holdfast.kill(part)
        at = job.step()
        job.until_step(at + 20)
        holdfast.until_mended(part, killed)
        job.until_step(job.step() + 5)
        assert job.pids() == before, f"the end of {part} was noticed"
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert not holdfast.incidents(job)


@pytest.mark.parametrize("parts", DECIDING, ids=" ".join)
def test_a_recovery_comes_to_its_end(holdfast: Cluster, parts: tuple[str, ...]) -> None:
    """One that is under way when the parts are killed, and one from a fault while they are away."""
    job = holdfast.run()
    job.until_step(15)
    rank = job.kill_rank(1)
    killed = {part: holdfast.kill(part) for part in parts}
    _recovers(holdfast, job, killed, rank.step + 5, generation=2)
    killed = {part: holdfast.kill(part) for part in parts}
    rank = job.kill_rank(2)
    _recovers(holdfast, job, killed, rank.step + 5, generation=3)
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert job.generation() == 3


def _recovers(holdfast: Cluster, job: Job, killed: dict[str, int], step: int, generation: int) -> None:
    job.until_step(step, generation)
    for part, pid in killed.items():
        holdfast.until_mended(part, pid)
    outcomes = ["recovered"] * (generation - 1)
    holdfast.until("the incident is closed", lambda: [row["outcome"] for row in holdfast.incidents(job)] == outcomes)
