"""The examples for tools of others run with nothing but what `holdfast connect` gives, and can write nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster import Cluster
from reader_tools import EXAMPLES, decisions, psql, reader_variables

pytestmark = pytest.mark.e2e


def test_a_tool_that_subscribes_receives_the_decisions(holdfast: Cluster, tmp_path: Path) -> None:
    job = holdfast.run()
    job.until_step(5)
    with decisions(holdfast, reader_variables(holdfast), job.name, tmp_path) as decided:
        killed = job.kill_rank(3)
        job.until_step(killed.step + 1, generation=2)
        holdfast.until("a tool has received the decisions", lambda: " incident_closed " in decided())
        assert f" reattempt {job.name} " in decided()
    job.finish()


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed (Debian: postgresql-client)")
def test_psql_reads_the_incidents_and_writes_nothing(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(5)
    killed = job.kill_rank(3)
    job.until_step(killed.step + 1, generation=2)
    holdfast.until("the incident is recorded as closed", lambda: holdfast.incidents(job)[-1]["closed_at"])
    holdfast.until("its end is in the history", lambda: holdfast.events(job, "incident_closed"))
    reader = reader_variables(holdfast)
    read = psql(reader, "--file", EXAMPLES / "incidents.sql")
    assert (read.returncode, read.stderr) == (0, "")
    told = ("process_exited", "incident_opened", "reattempt", "generation_started", "incident_closed")
    assert all(f" {word} " in read.stdout for word in (job.name, "killed_by_signal", *told))
    written = psql(reader, "--command", "begin read write; delete from historian.events")
    assert written.returncode != 0 and "permission denied" in written.stderr
    job.finish()
