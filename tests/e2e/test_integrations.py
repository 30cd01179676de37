"""Frameworks whose steps are kept by one line: a rank is killed in the middle, and nothing shows it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import JOBS, Cluster
from job import Job
from vault_memory import VaultMemory

pytestmark = pytest.mark.e2e

SCRIPT = JOBS / "frameworks.py"
KILL_AFTER = 8
"""A step in the middle of an epoch, and not one that the script saves."""


FRAMEWORKS = ("transformers", "lightning", "accelerate")


@pytest.mark.parametrize("framework", [*FRAMEWORKS, *(f"{framework}-fsdp2" for framework in FRAMEWORKS)])
def test_a_rank_is_killed_between_two_saves(holdfast: Cluster, tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework.partition("-")[0])
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    # The same script, and nothing of Holdfast there: the line does nothing.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    undisturbed.mkdir()
    subprocess.run([*command, SCRIPT, framework, undisturbed], check=True)

    killed.mkdir()
    job = holdfast.run(framework, killed, str(KILL_AFTER), script=SCRIPT, nnodes=2, nproc=1)
    job.until("rank 1 has stopped", (killed / "paused").exists)
    for rank, node in enumerate(holdfast.members(job)):
        memory = VaultMemory(holdfast, job, node, rank)
        job.until("memory has the step", lambda memory=memory: memory.has_newest(KILL_AFTER))
    os.kill(_pid_of_rank(holdfast, job, 1), signal.SIGKILL)
    assert job.exit_code() == 0, job.errors()[-2000:]

    for rank in (0, 1):
        assert _noted(killed, rank) == _noted(undisturbed, rank)
        assert f"begins {KILL_AFTER}" in (killed / f"rank-{rank}.2").read_text().splitlines()
    (incident,) = holdfast.incidents(job)
    assert incident["outcome"] == "recovered"
    rows = holdfast.until("both generations are recorded", lambda: _generations(holdfast, job))
    # The step of the kill had begun; none that was complete is lost. Each counts once, though two hooks see it.
    assert [row["lost_steps"] for row in rows] == [None, 0]
    assert {row["step_source"] for row in rows} == {"framework"}
    assert all(row["step_source_name"].startswith(framework.partition("-")[0]) for row in rows)


def _generations(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    """The job's generations, once the second one has made a step."""
    rows = cluster.query("select * from historian.generations where job = $1 order by generation", job.name)
    return rows if len(rows) == 2 and rows[1]["step_source"] else []


def _noted(folder: Path, rank: int) -> list[str]:
    """What a rank did from its first batch to its last, without what it had to do twice."""
    first, *later = sorted(folder.glob(f"rank-{rank}.*"))
    lines = first.read_text().splitlines()
    for path in later:
        # Batches of the step that was not completed.
        lines = [line for line in lines if not line.startswith(f"trained {KILL_AFTER} ")]
        lines += path.read_text().splitlines()
    return [line for line in lines if not line.startswith("begins")]


def _pid_of_rank(cluster: Cluster, job: Job, rank: int) -> int:
    started = cluster.events(job, "ranks_started")
    return next(each["pid"] for event in started for each in event["ranks"] if each["rank"] == rank)
