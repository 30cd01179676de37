"""kill -9 of one rank: the same nodes go on in the next generation, and the result is that of an undisturbed run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster import Cluster
from reader_tools import EXAMPLES, decisions, psql, reader_variables
from records import check_record, check_steps, phases, timeline

pytestmark = pytest.mark.e2e


def test_the_job_goes_on_where_it_was_on_the_same_nodes(holdfast: Cluster, tmp_path: Path) -> None:
    job = holdfast.run()
    job.until_step(25)
    nodes = holdfast.members(job)
    before = job.pids()
    reader = reader_variables(holdfast)
    with decisions(holdfast, reader, job.name, tmp_path) as decided:
        killed = job.kill_rank(3)
        job.until_step(killed.step + 5, generation=2)
        job.finish()
        holdfast.until("a tool has received the decisions", lambda: " incident_closed " in decided())
        assert f" reattempt {job.name} " in decided()

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
    assert [kind for kind in told if kind in expected][: len(expected)] == [*expected]
    assert {"ranks_started", "first_step", "incident_closed"} <= set(told)

    if shutil.which("psql") is None:
        pytest.skip("psql is not installed (Debian: postgresql-client): its example was not tried")
    read = psql(reader, "--file", EXAMPLES / "incidents.sql")
    assert (read.returncode, read.stderr) == (0, "")
    assert all(f" {word} " in read.stdout for word in (job.name, "killed_by_signal", *expected))
    written = psql(reader, "--command", "begin read write; delete from historian.events")
    assert written.returncode != 0 and "permission denied" in written.stderr


def test_every_rank_of_a_node_killed_at_once_is_one_incident(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    job.kill_ranks(2, 3)
    job.until_step(25, generation=2)
    job.finish()
    check_record(holdfast, job)
    (incident,) = holdfast.incidents(job)
    assert incident["attempts"] == 1
