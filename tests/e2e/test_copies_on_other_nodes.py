"""Every step is kept on a second node as well: a lost node's shards come from there, and no step is lost with it."""

from __future__ import annotations

import pytest
from cluster import Cluster
from job import Job
from records import check_record

pytestmark = pytest.mark.e2e

KEEP = ("--keep-bytes", "2000000", "--checkpoint-every", "1000", "--step-s", "0.05")


def backed_up(cluster: Cluster, job: Job, node: str) -> int:
    """The newest step of a node that is known to be on another one."""
    steps = [event["step"] for event in cluster.events(job, "shards_backed_up") if event["node"] == node]
    return max(steps, default=0)


def test_a_lost_node_s_shards_come_from_the_node_that_keeps_them(holdfast: Cluster) -> None:
    job = holdfast.run(*KEEP)
    members = holdfast.members(job)
    holdfast.until("both nodes have copies elsewhere", lambda: all(backed_up(holdfast, job, node) for node in members))
    kept = backed_up(holdfast, job, members[1])
    holdfast.power_off(members[1])
    job.until_step(kept + 5, generation=2)

    # Nothing was on the disk: without the copies it would have begun anew.
    for rank in range(job.world_size):
        assert next(note.step for note in job.trained(rank) if note.generation > 1) > kept
    (standby,) = set(holdfast.members(job)) - set(members)
    holdfast.until("what was fetched is recorded", lambda: len(holdfast.events(job, "shards_fetched")) == 2)
    assert {(event["node"], event["keeper"]) for event in holdfast.events(job, "shards_fetched")} == {
        (standby, members[0])
    }
    # The standby's own shards have copies again.
    holdfast.until("the new node has copies elsewhere", lambda: backed_up(holdfast, job, standby) > kept)
    job.finish()
    check_record(holdfast, job)
