"""A vault and a rank die soon after each other: what is left makes up a whole step, or a loss is reported."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from job import Job, Trained
from test_kept_in_memory import vault_pid
from vault_memory import VaultMemory, lose

pytestmark = pytest.mark.e2e

ARGUMENTS = ("--keep-bytes", "1000000", "--distinct", "--checkpoint-every", "0")
NEVER = ("--persist-every", "never")
KEPT_WITHIN_STEPS = 10
"""A busy machine takes some steps of 20 ms until one is kept."""
COPIED_WITHIN_STEPS = 30
"""Until another node has one."""


def test_a_rank_dies_while_another_ranks_vault_has_just_died(holdfast: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_text("60")
    job = holdfast.run(*ARGUMENTS, "--gate", gate, nproc=1, options=("--mesh", "dp=2", *NEVER))
    job.until_step(60)
    members = holdfast.members(job)
    memory = [VaultMemory(holdfast, job, node, rank) for rank, node in enumerate(members)]
    holdfast.until("all have kept the step", lambda: all(each.has_newest(60) for each in memory))
    node = members[1]
    vault = vault_of(holdfast, node)
    end(vault)
    # Its successor has all that it had, before another save.
    job.kill_rank(0)
    gate.unlink()
    job.until_step(60 + COPIED_WITHIN_STEPS, generation=2)
    assert first_note(job, 2).step == 61
    assert vault_of(holdfast, node) != vault

    vault = vault_of(holdfast, node)
    reached = job.step()
    lose(vault)
    holdfast.until("there is another vault", lambda: vault_pid(holdfast, node) not in (0, vault))
    job.until_step(job.step() + COPIED_WITHIN_STEPS)
    # All nodes kept the last common step, until all kept steps again.
    (interrupted, *_) = holdfast.until("it is reported", lambda: holdfast.events(job, "keeping_interrupted"))
    assert interrupted["node"] == node and interrupted["step"] > reached - KEPT_WITHIN_STEPS
    holdfast.until("it is kept no longer", lambda: any("memory again" in it for it in plans(holdfast, job)))
    assert any(f"all nodes keep step {interrupted['step']} until" in it for it in plans(holdfast, job))
    killed = job.kill_rank(0)
    job.until_step(killed.step + COPIED_WITHIN_STEPS, generation=3)
    began = first_note(job, 3).step
    assert began > killed.step - KEPT_WITHIN_STEPS

    # The next vault does not come in time.
    lose(vault_of(holdfast, node))
    killed = job.kill_rank(0)
    job.until_step(killed.step + 2, generation=4)
    assert first_note(job, 4).step >= began
    job.finish()


def test_a_job_whose_only_copies_are_lost_starts_from_scratch_only_if_its_owner_allows_it(holdfast: Cluster) -> None:
    refused = holdfast.run(*ARGUMENTS, nnodes=1, nproc=1, options=NEVER)
    allowed = holdfast.run(*ARGUMENTS, nnodes=1, nproc=1, options=(*NEVER, "--allow-scratch"))
    for job in (refused, allowed):
        job.until_step(10)
        holdfast.until("it is known that the job keeps steps", lambda job=job: holdfast.events(job, "steps_kept"))
        job.until_step(job.step() + 5)
        (node,) = holdfast.members(job)
        vault, rank = vault_of(holdfast, node), job.trained(0)[-1].pid
        lose(vault)
        end(rank)

    assert refused.exit_code() == 1
    (finished,) = holdfast.until("the end is recorded", lambda: holdfast.events(refused, "job_finished"))
    assert "none is left in memory that all ranks have" in finished["traceback"]
    assert "--allow-scratch" in finished["traceback"]
    assert refused.trained(0)[-1].generation == 1

    allowed.until_step(1, generation=2)
    reached = [note.step for note in allowed.trained(0) if note.generation == 1][-1]
    allowed.until_step(reached + 2, generation=2)
    (closed,) = holdfast.until("the incident is closed", lambda: holdfast.events(allowed, "incident_closed"))
    # It may have completed a step that it did not come to note.
    lost_steps = closed["lost_steps"]
    assert lost_steps in (reached, reached + 1)
    assert f"{lost_steps} steps were lost: the job began from scratch" in closed["reason"]
    (lost,) = holdfast.events(allowed, "steps_lost")
    assert (lost["step"], lost["newest_step"]) == (0, lost_steps)
    (shown,) = json.loads(holdfast.command("incidents", "--job", allowed.name, "--json").stdout)
    assert shown["lost_steps"] == lost_steps
    allowed.finish()


def plans(cluster: Cluster, job: Job) -> list[str]:
    return [event["reason"] for event in cluster.events(job, "backups_planned")]


def vault_of(cluster: Cluster, node: str) -> int:
    return cluster.until("the node has a vault", lambda: vault_pid(cluster, node))


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def first_note(job: Job, generation: int) -> Trained:
    return next(note for note in job.trained(0) if note.generation == generation)
