"""What ranks print: rank 0's lines with the person who runs the job, everybody's in files on the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster

pytestmark = pytest.mark.e2e


def test_output_is_shown_and_kept(holdfast: Cluster) -> None:
    job = holdfast.run("--print-every", "1")
    job.until_step(30)
    members = holdfast.members(job)
    job.finish()
    steps = job.printed_steps()
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 30
    assert f"done steps={len(steps)}" in job.output()
    assert "rank 0 of 4 ends" in job.errors()
    assert "generation 1 on" in job.errors() and "completed" in job.errors()
    for rank in range(job.world_size):
        stem = holdfast.layout.node(members[rank // job.nproc]) / "logs" / job.name / f"rank-{rank}"
        assert f"rank {rank} of 4 ends" in Path(f"{stem}.err").read_text()
    assert job.output() in (holdfast.layout.node(members[0]) / "logs" / job.name / "rank-0.out").read_text()
    for child in ("controller", members[0], "postgres", "supervisor"):
        assert holdfast.command("logs", child, "-n", "5").stdout.strip()


def test_a_rank_that_prints_without_end_disturbs_nobody(holdfast: Cluster) -> None:
    # 4 ranks x 20 steps x 1 MB: files rotate, and the follower's lines may be dropped, never the training.
    job = holdfast.run("--shout-bytes", "1000000", "--checkpoint-every", "0")
    job.until_step(20)
    rank = job.kill_rank(3)
    job.until_step(1, generation=2)
    members = holdfast.members(job)
    job.finish()
    assert rank.generation == 1
    (exited,) = holdfast.until(
        "its end is recorded",
        lambda: [event for event in holdfast.events(job, "process_exited") if event["rank"] == 3],
    )
    assert len(exited["log_tail"]) <= 16_384
    logs = sorted((holdfast.layout.node(members[1]) / "logs" / job.name).glob("rank-3.out*"))
    assert sum(log.stat().st_size for log in logs) >= 20 * 1_000_000
