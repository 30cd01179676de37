"""Two jobs on one cluster, two clusters on one machine: nobody notices the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, cluster
from records import check_record, check_steps

pytestmark = pytest.mark.e2e


def test_two_jobs_share_a_cluster_and_fail_apart(holdfast: Cluster) -> None:
    large = holdfast.run(nnodes=2, nproc=1)
    large.until_step(5)
    small = holdfast.run(nnodes=1, nproc=2)
    small.until_step(5)
    assert not set(holdfast.members(large)) & set(holdfast.members(small))
    undisturbed = large.pids()
    rank = small.kill_rank(1)
    small.until_step(rank.step + 5, generation=2)
    assert large.pids() == undisturbed
    for job in (small, large):
        job.finish()
    check_record(holdfast, small, large)
    check_steps(holdfast, small)
    check_steps(holdfast, large)
    assert len(holdfast.incidents(small)) == 1 and not holdfast.incidents(large)
    taken = holdfast.command("run", "--name", small.name, "--code", "none", str(Path(__file__)), check=False)
    assert taken.returncode == 1 and "exists already" in taken.stderr


@pytest.mark.long
def test_two_clusters_do_not_meet(holdfast: Cluster, tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=1) as other:
        jobs = [each.run(nnodes=1, nproc=2, name="the-same-name") for each in (holdfast, other)]
        for job in jobs:
            job.until_step(10)
        rank = jobs[1].kill_rank(0)
        jobs[1].until_step(rank.step + 5, generation=2)
        for each, job in zip((holdfast, other), jobs, strict=True):
            job.finish()
            check_record(each, job)
        assert not holdfast.incidents(jobs[0]) and len(other.incidents(jobs[1])) == 1
