"""The database goes back to a backup while a job runs and agents know more than the database."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from cluster import Cluster, alive, cluster
from records import check_record, check_starts

pytestmark = [pytest.mark.e2e, pytest.mark.long]
"""What a restored record gets back: tests/integration/test_database_backup.py in every run."""


@pytest.mark.timeout(300)
def test_after_a_restored_backup_jobs_go_on_and_the_record_is_whole(tmp_path: Path) -> None:
    backup = tmp_path / "holdfast.dump"
    with cluster(tmp_path / "cluster", nodes=3) as running:
        job = running.run()
        ended = running.run(nnodes=1, nproc=1)
        job.until_step(10)
        ended.until_step(10)
        running.command("backup", backup)
        # What the database forgets: three generations, an evicted node, one that joined, a job's end, and a job.
        job.kill_rank(2)
        job.until_step(job.step() + 5, generation=2)
        lost = running.members(job)[1]
        joined = running.add_node()
        running.until("the new node is free", lambda: running.nodes().get(joined, {}).get("state") == "standby")
        running.power_off(lost)
        job.until_step(job.step() + 5, generation=3)
        assert joined in running.members(job)
        ended.finish()
        end = ended.step()
        running.power_on(lost)
        forgotten = running.run(nnodes=1, nproc=1)
        forgotten.until_step(5)
        before, at, generation = _events(running), job.step(), job.generation()

        pids = forgotten.pids()
        running.command("restore", "--yes", backup)
        job.until_step(at + 10, generation=generation + 1)
        running.until("the ranks of the forgotten job end", lambda: not [pid for pid in pids if alive(pid)])
        assert forgotten.exit_code() == 1 and "Submit the job again" in forgotten.errors()
        job.finish()
        running.until("the ended job ends again", lambda: _codes(running) == {job.name: 0, ended.name: 0})
        again = [note.step for note in ended.trained(0) if note.generation > 1]
        assert again[0] > end - 10, "from its checkpoint on the disk"
        check_record(running)
        assert before <= _events(running)
        check_starts(running, job)
        opened, closed = (
            {event["incident"] for event in running.events(job, kind)}
            for kind in ("incident_opened", "incident_closed")
        )
        assert len(opened) >= 3 and opened == closed, "the record knows those that the controller forgot"
        starts = [note.step for note in job.trained(0) if note.generation > generation]
        assert starts[0] > at, "no step is lost: the memory of the ranks has them"
        running.until("all nodes are free", lambda: {it["state"] for it in running.nodes().values()} == {"standby"})
        assert {lost, joined} <= running.nodes().keys(), "the one that joined is known, the evicted one not blocked"


@pytest.mark.timeout(300)
def test_with_the_bus_lost_as_well_nothing_of_before_counts(tmp_path: Path) -> None:
    backup = tmp_path / "holdfast.dump"
    with cluster(tmp_path / "cluster", nodes=3) as running:
        job = running.run("--keep-bytes", "1000")
        job.until_step(10)
        running.command("backup", backup)
        # The database forgets three failures, two of them on one node; the report of a fourth waits in an agent.
        for rank in (2, 3, 1):
            job.until_step(job.step() + 3, generation=job.generation())
            last = job.kill_rank(rank)
            job.until_step(last.step + 2, generation=last.generation + 1)
        pid, before = running.freeze_nats(), job.generation()
        last = job.kill_rank(2)
        shutil.rmtree(running.layout.nats / "jetstream")
        running.command("restore", "--yes", backup)
        os.kill(pid, signal.SIGKILL)

        job.until_step(last.step + 10, generation=before + 1)
        running.until("the incident is closed", lambda: all(row["closed_at"] for row in running.incidents(job)))
        first = next(note for note in job.trained(0) if note.generation > before)
        assert first.step >= last.step, "memory has what the ranks had kept"
        (started, again) = running.events(job, "generation_started")
        assert (started["generation"], again["generation"] > before) == (1, True)
        assert "the database went back to generation 1" in again["reason"]
        assert not running.events(job, "eviction")
        job.finish()
        check_record(running, job)


def _codes(running: Cluster) -> dict[str, int]:
    return {row["key"]: row["exit_code"] for row in running.query("select key, exit_code from controller.jobs")}


def _events(running: Cluster) -> set[str]:
    return {str(row["id"]) for row in running.query("select id from historian.events")}
