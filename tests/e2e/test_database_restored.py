"""The database goes back to a backup while a job runs and agents know more than the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, alive, cluster
from records import check_record, check_starts

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_after_a_restored_backup_jobs_go_on_and_the_record_is_whole(tmp_path: Path) -> None:
    backup = tmp_path / "holdfast.dump"
    with cluster(tmp_path / "cluster", nodes=3) as running:
        job = running.run()
        job.until_step(10)
        running.command("backup", backup)
        # The database forgets two generations, and a job.
        for generation in (2, 3):
            job.kill_rank(generation)
            job.until_step(job.step() + 5, generation=generation)
        forgotten = running.run(nnodes=1, nproc=1)
        forgotten.until_step(5)
        before, at = _events(running), job.step()

        lost = forgotten.pids()
        running.command("restore", "--yes", backup)
        job.until_step(at + 10, generation=4)
        running.until("the ranks of the forgotten job end", lambda: not [pid for pid in lost if alive(pid)])
        assert forgotten.exit_code() == 1 and "Submit the job again" in forgotten.errors()
        job.finish()
        check_record(running)
        assert before <= _events(running)
        check_starts(running, job)
        opened, closed = (
            {event["incident"] for event in running.events(job, kind)}
            for kind in ("incident_opened", "incident_closed")
        )
        assert len(opened) >= 3 and opened == closed, "the record knows those that the controller forgot"
        starts = [note.step for note in job.trained(0) if note.generation > 3]
        assert starts[0] > at, "no step is lost: the memory of the ranks has them"
        running.until("all nodes are free", lambda: {it["state"] for it in running.nodes().values()} == {"standby"})


def _events(running: Cluster) -> set[str]:
    return {str(row["id"]) for row in running.query("select id from historian.events")}
