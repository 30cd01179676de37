"""kill -9 of one rank: the same nodes go on in the next generation, and the result is that of an undisturbed run."""

from __future__ import annotations

import pytest
from cluster import Cluster
from records import check_record, check_steps, phases, timeline

pytestmark = pytest.mark.e2e


def test_the_job_goes_on_where_it_was_on_the_same_nodes(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(25)
    nodes = holdfast.members(job)
    before = job.pids()
    killed = job.kill_rank(3)
    job.until_step(killed.step + 5, generation=2)
    job.finish()

    assert job.generation() == 2
    assert not set(job.pids()) & set(before)
    assert holdfast.members(job) == nodes
    assert min(note.step for note in job.trained(0) if note.generation == 2) % 10 == 1
    check_record(holdfast, job)
    check_steps(holdfast, job)

    (incident,) = holdfast.incidents(job)
    assert (incident["symptom"], incident["outcome"], incident["attempts"]) == ("killed_by_signal", "recovered", 1)
    spent = phases(holdfast, incident["key"])
    assert spent and None not in spent.values(), spent
    assert all(seconds >= 0 for seconds in spent.values())
    parts = [seconds for phase, seconds in spent.items() if phase != "total_s"]
    assert sum(parts) == pytest.approx(spent["total_s"], abs=0.01)
    told = timeline(holdfast, incident["key"])
    expected = ["process_exited", "incident_opened", "reattempt", "generation_started", "ranks_stopped"]
    # Another rank may end of the lost connection before the incident is opened.
    assert list(dict.fromkeys(kind for kind in told if kind in expected)) == expected
    assert {"ranks_started", "first_step", "incident_closed"} <= set(told)


def test_every_rank_of_a_node_killed_at_once_is_one_incident(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    job.kill_ranks(2, 3)
    job.until_step(25, generation=2)
    job.finish()
    check_record(holdfast, job)
    (incident,) = holdfast.incidents(job)
    assert incident["attempts"] == 1
