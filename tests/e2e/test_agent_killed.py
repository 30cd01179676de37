"""kill -9 of an agent while its ranks train: the next one adopts them, and nobody else notices."""

from __future__ import annotations

import pytest
from cluster import Cluster
from records import check_record, check_steps

pytestmark = pytest.mark.e2e


def test_living_ranks_are_adopted(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    before = job.pids()
    members = holdfast.members(job)
    # Steps that the agents have said already must not be said again by those that follow them.
    ranks = "select distinct rank from historian.steps where job = $1"
    holdfast.until("steps of all ranks are recorded", lambda: len(holdfast.query(ranks, job.name)) == job.world_size)
    for node in members:
        killed = holdfast.kill(node)
        holdfast.until_mended(node, killed)
    job.until_step(job.step() + 20)
    assert job.pids() == before
    job.finish()
    assert job.generation() == 1
    check_record(holdfast, job)
    check_steps(holdfast, job)

    assert not holdfast.incidents(job)
    adopted = [event for event in holdfast.events(job, "ranks_started") if event.get("adopted")]
    assert sorted(event["node"] for event in adopted) == sorted(members)
    assert sorted(rank["pid"] for event in adopted for rank in event["ranks"]) == sorted(before)


def test_a_rank_that_dies_without_an_agent_is_reported_by_the_next(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    node = holdfast.members(job)[1]
    killed = holdfast.kill(node)
    rank = job.kill_rank(3)
    job.until_step(rank.step + 5, generation=2)
    holdfast.until_mended(node, killed)
    holdfast.until(
        "the incident is closed", lambda: [row["outcome"] for row in holdfast.incidents(job)] == ["recovered"]
    )
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    (exited,) = [event for event in holdfast.events(job, "process_exited") if event["rank"] == 3]
    assert (exited["pid"], exited.get("signal")) == (rank.pid, 9)
