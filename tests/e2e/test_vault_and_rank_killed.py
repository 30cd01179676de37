"""The death of a vault and of a rank soon after each other: what the other vaults hold still makes up a whole step."""

from __future__ import annotations

import os
import signal

import pytest
from cluster import Cluster
from job import Job
from test_kept_in_memory import vault_pid

pytestmark = pytest.mark.e2e

ARGUMENTS = ("--keep-bytes", "1000000", "--distinct", "--checkpoint-every", "0")
ON_A_BUSY_MACHINE = 10
"""Steps that a copy to another node may be late."""


def first_step(job: Job, generation: int) -> int:
    return min(note.step for rank in range(2) for note in job.trained(rank) if note.generation == generation)


def test_a_rank_dies_while_another_ranks_vault_has_just_died(holdfast: Cluster) -> None:
    job = holdfast.run(*ARGUMENTS, nproc=1, options=("--mesh", "dp=2", "--persist-every", "never"))
    job.until_step(30)
    killed = job.kill_rank(0)
    job.until_step(killed.step + 30, generation=2)
    node = holdfast.members(job)[1]

    # First soon after the vault is back, then long before that.
    for generation, steps_between in ((3, 30), (4, 0)):
        holdfast.until("the node has a vault", lambda: vault_pid(holdfast, node))
        os.kill(vault_pid(holdfast, node), signal.SIGKILL)
        job.until_step(job.step() + steps_between, generation=generation - 1)
        killed = job.kill_rank(0)
        job.until_step(killed.step + 30, generation=generation)
        assert first_step(job, generation) > killed.step - ON_A_BUSY_MACHINE
    job.finish()
