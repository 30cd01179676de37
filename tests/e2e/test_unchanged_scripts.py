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
STEPS = 120
LOSS = re.compile(r" step (\d+) loss (\S+)$", re.MULTILINE)


# Ranks that are executed import torch each for itself, so there are fewer of them, and the reference is always forked.
@pytest.mark.parametrize(("start", "nproc"), [("fork", 2), ("exec", 1)])
def test_a_torchrun_script_survives_a_kill_unchanged(holdfast: Cluster, start: str, nproc: int, tmp_path: Path) -> None:
    arguments = ("--steps", str(STEPS), "--ckpt-every", "10")
    undisturbed = holdfast.run(*arguments, "--ckpt-dir", tmp_path / "a", script=MINIMAL, nproc=nproc)
    assert undisturbed.exit_code() == 0
    job = holdfast.run(
        *arguments, "--ckpt-dir", tmp_path / "b", script=MINIMAL, nproc=nproc, options=["--start", start]
    )
    rank = _pid_of_rank(holdfast, job, nproc)
    job.until("it has saved a checkpoint", (tmp_path / "b" / "latest.pt").exists)
    os.kill(rank, signal.SIGKILL)
    assert job.exit_code() == 0
    assert _losses(job)[STEPS] == _losses(undisturbed)[STEPS]
    expected = _losses(undisturbed)
    assert all(expected[step] == loss for step, loss in _losses(job).items())
    check_record(holdfast, undisturbed, job)
    (incident,) = holdfast.incidents(job)
    assert (incident["symptom"], incident["outcome"]) == ("killed_by_signal", "recovered")
    rows = holdfast.query("select count(*) as steps from historian.steps where job = $1", undisturbed.name)
    assert rows[0]["steps"] == STEPS * undisturbed.world_size


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
