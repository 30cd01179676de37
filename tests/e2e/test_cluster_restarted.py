"""The whole cluster ends in the middle of training, and comes up again: the job goes on from its checkpoint."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster, alive, cluster
from job import Job
from records import check_record
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]
"""Whatever ends there starts again: test_power_loss.py and tests/integration/test_embedded_*.py in every run."""


@pytest.mark.timeout(300)
def test_a_job_survives_the_end_of_the_cluster_however_it_ends(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=2, has_own_nursery=True) as running:
        job = running.run()
        job.until_step(15)
        running.until_mended("nursery", running.kill("nursery"))
        job.until_step(25)
        assert job.generation() == 1, "the end of the nursery was noticed"
        ends = (_down, _interrupt, _kill_supervisor)
        for end in ends:
            generation, at = job.generation(), job.step()
            ranks = job.pids()
            end(running)
            assert not [pid for pid in ranks if alive(pid)], f"ranks outlived {end.__name__}"
            assert running.command("status", check=False).returncode == 1
            running.up()
            job.until_step(at + 10, generation=generation + 1)
        assert _went_on_from_a_checkpoint(job, len(ends))
        job.finish()
        check_record(running, job)
        assert {row["outcome"] for row in running.incidents(job)} == {"recovered"}


def _down(running: Cluster) -> None:
    running.down()


def _interrupt(running: Cluster) -> None:
    """What Ctrl-C does to a cluster in the foreground."""
    supervisor = running.status()["supervisor_pid"]
    os.kill(supervisor, signal.SIGINT)
    until("the supervisor ends", lambda: not alive(supervisor))


def _kill_supervisor(running: Cluster) -> None:
    supervisor = running.status()["supervisor_pid"]
    os.kill(supervisor, signal.SIGKILL)
    running.down()


def _went_on_from_a_checkpoint(job: Job, times: int) -> bool:
    notes = job.trained(0)
    starts = [after.step for before, after in pairwise(notes) if after.generation > before.generation]
    return len(starts) == times and all(step > 10 for step in starts)
