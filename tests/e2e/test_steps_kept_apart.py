"""Steps that are shorter than the copy of their state: all ranks keep the same ones, and restore a common one."""

from __future__ import annotations

import pytest
from cluster import Cluster
from job import Job
from records import check_record

pytestmark = pytest.mark.e2e

KEEP = ("--keep-bytes", "160000000", "--distinct", "--still")
ARGUMENTS = (*KEEP, "--checkpoint-every", "0", "--step-s", "0.005")
OPTIONS = ("--mesh", "dp=2", "--persist-every", "never")
WINDOW = 32


def test_ranks_that_keep_some_steps_only_go_on_from_the_newest_that_all_have(holdfast: Cluster) -> None:
    job = holdfast.run(*ARGUMENTS, nproc=1, options=OPTIONS)
    holdfast.until("some steps are kept only", lambda: distances(holdfast, job)[-1] >= 4)
    every, since = distances(holdfast, job)[-1], changes(holdfast, job)[-1]["step"]
    job.until_step(since + every)
    assert any(it.startswith("A restart trains up to") for it in plan_lines(holdfast, job))

    killed = job.kill_rank(1)
    widest = distances(holdfast, job)[-1]
    job.until_step(killed.step + 3, generation=2)
    starts = {next(note.step for note in job.trained(rank) if note.generation == 2) for rank in (0, 1)}
    (first,) = starts
    # Both had it, though the node of each keeps two steps only. A new distance counts from its own step on.
    kept = first - 1
    (in_force,) = [change["every"] for change in changes(holdfast, job) if change["step"] <= kept][-1:]
    assert kept % in_force == 0 and killed.step - kept <= 2 * max(widest, every)
    (closed,) = holdfast.until("the incident is closed", lambda: holdfast.events(job, "incident_closed"))
    assert closed["redone_steps"] in (killed.step - first + 1, killed.step - first + 2)
    assert f"the job went on at step {first}" in closed["reason"]
    # A busy node may still have been copying the step before the newest of the other rank, so it never was whole.
    assert not holdfast.events(job, "steps_lost")
    job.finish()
    check_record(holdfast, job)


@pytest.mark.long
def test_a_job_may_keep_every_step_whatever_it_costs(holdfast: Cluster) -> None:
    options = (*OPTIONS, "-e", "HOLDFAST_KEEP_COST_MAX=0")
    job = holdfast.run(*ARGUMENTS, nproc=1, options=options)
    # The first window ends, and nothing is decided by what it has cost.
    job.until_step(WINDOW + WINDOW // 2)
    killed = job.kill_rank(0)
    job.until_step(killed.step + 3, generation=2)
    assert changes(holdfast, job) == []
    assert killed.step - next(note.step for note in job.trained(0) if note.generation == 2) <= 1
    job.finish()


def changes(cluster: Cluster, job: Job) -> list[dict[str, int]]:
    return cluster.events(job, "keeping_spaced")


def distances(cluster: Cluster, job: Job) -> list[int]:
    return [1, *(event["every"] for event in changes(cluster, job))]


def plan_lines(cluster: Cluster, job: Job) -> list[str]:
    text = cluster.until(
        "the plan has it", lambda: "again" in (out := cluster.command("ckpt", "plan", job.name).stdout) and out
    )
    return [part.strip() for line in text.splitlines() for part in line.split(". ")]
