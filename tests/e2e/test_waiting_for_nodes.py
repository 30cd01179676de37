"""Not enough nodes: said so, and gone on with as soon as there are."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster
from job import Job
from jobs.arithmetic import batch, folded
from records import check_record

pytestmark = pytest.mark.e2e


def test_a_job_waits_for_a_node_to_join_and_for_one_to_replace_a_lost_one(tmp_path: Path) -> None:
    # On a busy machine a node may be slow, and the one that is back could replace it.
    with cluster(tmp_path, 1, {"HOLDFAST_MECHANISMS_FAIL_SLOW": "observe"}) as small:
        job = small.run(nproc=1)
        small.until("the shortage is recorded", lambda: small.events(job, "nodes_awaited"))
        (awaited,) = small.events(job, "nodes_awaited")
        assert (awaited["wanted"], awaited["available"]) == (2, 1)
        job.until("the shortage is reported", lambda: "waiting for nodes (1 of 2 are free)" in job.errors())
        assert not small.events(job, "generation_started")

        added = small.add_node()
        job.until_step(10)
        assert small.members(job) == ["node-0", added]

        # Nobody can replace it, so the others stop and wait.
        survivor = job.pids()[0]
        small.power_off(added)
        small.until("the job waits", lambda: small.events(job, "suspension"))
        small.until("the survivor is stopped", lambda: small.events(job, "ranks_stopped"))
        assert survivor == job.pids()[0]
        replacement = small.add_node()
        job.until_step(job.step() + 5, generation=2)
        small.until("the new members are recorded", lambda: small.members(job) == ["node-0", replacement])
        job.finish()
        # What a node had not sent when it lost its power it sends when it is on again.
        small.power_on(added)
        check_record(small, job)
        (incident,) = small.incidents(job)
        assert (incident["symptom"], incident["outcome"]) == ("node_lost", "recovered")
        _runs_on_one_to_three_nodes(small)


def _runs_on_one_to_three_nodes(small: Cluster) -> None:
    """As torchrun's MIN:MAX: fewer after a loss, all once the node is back. Nothing is on a disk; no step is lost."""
    options = ("--nnodes=1:3", "--rdzv-conf=last_call_timeout=1")
    steps = ("--keep-bytes", "8000000", "--checkpoint-every", "0", "--step-s", "0.05")
    _await_free(small, 3)
    job = small.run(*steps, nnodes=1, nproc=1, options=options)
    job.until_step(20)
    lost = small.members(job)[-1]
    small.power_off(lost)
    # The wait for more nodes uses up a generation.
    job.until_step(job.step() + 5, generation=3)
    small.power_on(lost)
    joined = small.until("it has joined again", lambda: _started(small, job, f"{lost} joined; the job runs on 3 of"))
    job.until_step(job.step() + 5, generation=joined["generation"])
    (job.scratch / "finish").touch()
    assert job.exit_code() == 0
    check_record(small, job)

    started = {event["generation"]: event["world_size"] for event in small.events(job, "generation_started")}
    # A rank that notices the loss first has the same nodes tried once more.
    assert [size for size, _ in groupby(started.values())] == [3, 2, 3]
    # To take it in was no failure.
    assert len(small.incidents(job)) == 1
    states, newest = {0: 1}, {0: 0}
    for note in job.trained(0):
        batches = sum(batch(note.step - 1, rank) for rank in range(started[note.generation]))
        assert note.folded == folded(states[note.step - 1], batches), f"rank 0 went astray: {note}"
        states[note.step] = note.folded
        if note.generation not in newest:
            # At most the step after which it was ended before it could keep it.
            assert note.step >= max(newest.values())
        newest[note.generation] = note.step


def _started(small: Cluster, job: Job, reason: str) -> dict[str, Any] | None:
    """The generation that was started for this reason."""
    return next((event for event in small.events(job, "generation_started") if reason in event["reason"]), None)


def _await_free(small: Cluster, nodes: int) -> None:
    free = "select count(*) as free from standby.nodes where state = 'standby'"
    small.until(f"{nodes} nodes are free", lambda: small.query(free)[0]["free"] >= nodes)
