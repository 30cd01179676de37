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


def test_jobs_of_two_clusters_do_not_remove_each_others_steps(holdfast: Cluster, tmp_path: Path) -> None:
    """Their directory is the same, and the clusters do not know of each other."""
    shared = tmp_path / "shared"
    options, keeps = ("--job-dir", str(shared), "--persist-every", "10"), ("--keep-bytes", "100000")
    steps = shared / "checkpoints"
    first = holdfast.run(*keeps, nnodes=1, nproc=2, name="first", options=options)
    first.until("it has steps on the disk", lambda: len(list(steps.glob("step-*"))) >= 2)
    with cluster(tmp_path / "other", nodes=1) as other:
        second = other.run(*keeps, nnodes=1, nproc=2, name="second", options=options)
        assert second.exit_code() == 1
        assert "job first writes its checkpoints to" in second.errors(), second.errors()[-3000:]
        assert "--job-dir" in second.errors()
        seen = first.step()
        first.until_step(seen + 20)
        assert not holdfast.incidents(first)
        first.finish()
        newest = max(int(path.name.removeprefix("step-")) for path in steps.glob("step-*"))
        # Once the first is over, nothing has to be waited for.
        third = other.run(*keeps, nnodes=1, nproc=2, name="third", options=options)
        third.until_step(newest + 1)
        assert third.trained(0)[0].step == newest + 1, "it goes on from the first one's steps"
        third.finish()
