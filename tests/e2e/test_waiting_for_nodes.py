"""Not enough nodes: said so, and gone on with as soon as there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import cluster
from records import check_record

pytestmark = pytest.mark.e2e


def test_a_job_waits_for_a_node_to_join_and_for_one_to_replace_a_lost_one(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=1) as small:
        job = small.run(nproc=1)
        small.until("the shortage is recorded", lambda: small.events(job, "nodes_awaited"))
        (awaited,) = small.events(job, "nodes_awaited")
        assert (awaited["wanted"], awaited["available"]) == (2, 1)
        job.until("the shortage is reported", lambda: "waiting for nodes (1 of 2 are free)" in job.errors())
        assert not small.events(job, "generation_started")

        added = small.add_node()
        job.until_step(10)
        assert small.members(job) == ["node-0", added]

        # Nobody can replace it, so the others stop and wait.
        survivor = job.pids()[0]
        small.power_off(added)
        small.until("the job waits", lambda: small.events(job, "suspension"))
        small.until("the survivor is stopped", lambda: small.events(job, "ranks_stopped"))
        assert survivor == job.pids()[0]
        replacement = small.add_node()
        job.until_step(job.step() + 5, generation=2)
        small.until("the new members are recorded", lambda: small.members(job) == ["node-0", replacement])
        job.finish()
        # What a node had not sent when it lost its power it sends when it is on again.
        small.power_on(added)
        check_record(small, job)
        (incident,) = small.incidents(job)
        assert (incident["symptom"], incident["outcome"]) == ("node_lost", "recovered")
