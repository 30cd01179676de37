"""Everything loses power at one stroke and is started again: the job comes back by itself, and no node is blamed."""

from __future__ import annotations

import os

import pytest
from cluster import Cluster
from records import check_record

pytestmark = pytest.mark.e2e

TRIALS = 10 if "HOLDFAST_LONG" in os.environ else 1


@pytest.mark.timeout(120 + 60 * TRIALS)
def test_a_job_comes_back_after_every_loss_of_power(holdfast: Cluster) -> None:
    # From here on it starts again at its first step: its losses are within one incident until it has passed step 30.
    job = holdfast.run("--checkpoint-every", "1000")
    job.until_step(30)
    job.kill_ranks(0, 2)
    job.until_step(3, generation=2)
    assert job.step() < 30
    for _ in range(TRIALS):
        generation, members = job.generation(), holdfast.members(job)
        holdfast.lose_power()
        holdfast.up()
        job.until_step(3, generation=generation + 1)
        assert holdfast.members(job) == members
        assert not [name for name, node in holdfast.nodes().items() if node["blocked_until"] is not None]
    job.until_step(40)
    job.finish()
    check_record(holdfast, job)
    assert {row["outcome"] for row in holdfast.incidents(job)} == {"recovered"}
