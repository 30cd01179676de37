"""A script made for torchrun runs as it is, survives a kill, and is seen step by step; ranks forked or executed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from job import Job
from records import check_record

pytestmark = pytest.mark.e2e

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal_ddp.py"
STEPS = 100
LOSS = re.compile(r" step (\d+) loss (\S+)$", re.MULTILINE)


# Ranks that are executed import torch each for itself.
@pytest.mark.parametrize("start", ["fork", pytest.param("exec", marks=pytest.mark.long)])
def test_a_torchrun_script_survives_a_kill_unchanged(holdfast: Cluster, tmp_path: Path, start: str) -> None:
    undisturbed = _run(holdfast, tmp_path / "undisturbed", nnodes=1)
    assert undisturbed.exit_code() == 0
    job = _run(holdfast, tmp_path / start, "--start", start, nnodes=2)
    _kill_a_rank(holdfast, job, tmp_path / start)

    expected = _losses(undisturbed)
    assert job.exit_code() == 0
    assert _losses(job)[STEPS] == expected[STEPS]
    assert all(expected[step] == loss for step, loss in _losses(job).items())
    check_record(holdfast, undisturbed, job)
    (incident,) = holdfast.incidents(job)
    assert (incident["symptom"], incident["outcome"]) == ("killed_by_signal", "recovered")
    rows = holdfast.query("select count(*) as steps from historian.steps where job = $1", undisturbed.name)
    assert rows[0]["steps"] == STEPS * undisturbed.world_size


def _run(cluster: Cluster, directory: Path, *options: str, nnodes: int) -> Job:
    """Two ranks, on one node or on two."""
    arguments = ("--steps", str(STEPS), "--ckpt-every", "10", "--ckpt-dir", directory)
    # The version has no more than the examples: two thousand files of the repository would be written on each node.
    code = ("--code", str(MINIMAL.parent))
    return cluster.run(*arguments, script=MINIMAL, nnodes=nnodes, nproc=2 // nnodes, options=[*code, *options])


def _kill_a_rank(cluster: Cluster, job: Job, directory: Path) -> None:
    rank = _pid_of_rank(cluster, job, 1)
    job.until("it has saved a checkpoint", (directory / "latest.pt").exists)
    os.kill(rank, signal.SIGKILL)


def _pid_of_rank(cluster: Cluster, job: Job, rank: int) -> int:
    def find() -> int | None:
        started = cluster.events(job, "ranks_started")
        pids = [entry["pid"] for event in started for entry in event["ranks"] if entry["rank"] == rank]
        return pids[-1] if pids else None

    pid = cluster.until(f"the start of rank {rank} is recorded", find)
    assert pid is not None
    return pid


def _losses(job: Job) -> dict[int, str]:
    return {int(step): loss for step, loss in LOSS.findall(job.output())}
