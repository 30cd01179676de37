"""A person ends a job: `holdfast stop`, Ctrl-C, and ranks that will not listen."""

from __future__ import annotations

import signal

import pytest
from cluster import Cluster, alive
from records import check_record

pytestmark = pytest.mark.e2e


def test_stop_ends_ranks_that_ignore_sigterm_and_all_their_children(holdfast: Cluster) -> None:
    job = holdfast.run("--ignore-sigterm", "--children", "2")
    job.until_step(5)
    ranks = job.pids()
    children = [int(pid) for pid in (job.journal / "children").read_text().split()]
    assert len(children) == 2 * job.world_size and all(alive(pid) for pid in ranks + children)

    assert "stopping job" in holdfast.command("stop", job.name).stdout
    assert job.exit_code() == 143
    assert not [pid for pid in ranks + children if alive(pid)]
    holdfast.until("the job's nodes are free", lambda: _states(holdfast) == {"standby"})
    check_record(holdfast, job)
    killed = [event["killed"] for event in holdfast.events(job, "ranks_stopped") if event["ranks"]]
    assert len(killed) == job.nnodes and min(killed) >= job.nproc
    (finished,) = holdfast.events(job, "job_finished")
    assert (finished["outcome"], finished["exit_code"]) == ("stopped", 143)

    refused = holdfast.command("stop", job.name, check=False)
    assert refused.returncode == 1 and "is over already: stopped" in refused.stderr


def test_children_of_a_killed_rank_end_with_its_generation(holdfast: Cluster) -> None:
    job = holdfast.run("--children", "1")
    job.until_step(5)
    left = [int(pid) for pid in (job.journal / "children").read_text().split()]
    job.kill_rank(0)
    job.until_step(15, generation=2)
    assert not [pid for pid in left if alive(pid)]
    job.finish()
    everyone = [int(pid) for pid in (job.journal / "children").read_text().split()]
    holdfast.until("a completed job leaves nobody behind", lambda: not [pid for pid in everyone if alive(pid)])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_job(holdfast: Cluster, number: int) -> None:
    job = holdfast.run()
    job.until_step(5)
    ranks = job.pids()
    job.process.send_signal(number)
    assert job.exit_code() == 143
    assert not [pid for pid in ranks if alive(pid)]
    assert "stopping job" in job.errors()


def test_ctrl_c_while_a_recovery_is_under_way_ends_job_and_incident(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    job.kill_rank(2)
    job.interrupt()
    assert job.exit_code() == 143
    check_record(holdfast, job)
    assert {row["outcome"] for row in holdfast.incidents(job)} <= {"stopped"}


def _states(cluster: Cluster) -> set[str]:
    return {node["state"] for node in cluster.nodes().values()}
