"""kill -9 of each part of the cluster, in the middle of training and in the middle of a recovery."""

from __future__ import annotations

import pytest
from cluster import Cluster
from records import check_record, check_steps

pytestmark = pytest.mark.e2e

PARTS = ("controller", "standby", "historian", "analyzer", "ckpt", "nats", "postgres")
DECIDING = ("controller", "standby", "historian", "nats", "postgres")


@pytest.mark.parametrize("part", PARTS)
def test_training_does_not_notice(holdfast: Cluster, part: str) -> None:
    job = holdfast.run()
    job.until_step(15)
    before = job.pids()
    killed = holdfast.kill(part)
    at = job.step()
    job.until_step(at + 20)
    holdfast.until_mended(part, killed)
    job.until_step(job.step() + 5)
    assert job.pids() == before
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert not holdfast.incidents(job)


@pytest.mark.parametrize("part", DECIDING)
def test_a_recovery_under_way_comes_to_its_end(holdfast: Cluster, part: str) -> None:
    job = holdfast.run()
    job.until_step(15)
    rank = job.kill_rank(1)
    killed = holdfast.kill(part)
    job.until_step(rank.step + 5, generation=2)
    holdfast.until_mended(part, killed)
    holdfast.until(
        "the incident is closed", lambda: [row["outcome"] for row in holdfast.incidents(job)] == ["recovered"]
    )
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert job.generation() == 2


@pytest.mark.parametrize("part", DECIDING)
def test_a_fault_while_it_is_away_is_mended_all_the_same(holdfast: Cluster, part: str) -> None:
    job = holdfast.run()
    job.until_step(15)
    killed = holdfast.kill(part)
    rank = job.kill_rank(2)
    job.until_step(rank.step + 5, generation=2)
    holdfast.until_mended(part, killed)
    holdfast.until(
        "the incident is closed", lambda: [row["outcome"] for row in holdfast.incidents(job)] == ["recovered"]
    )
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert job.generation() == 2
