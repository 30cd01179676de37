"""NATS comes back with an older copy of its directory, in the middle of training."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from records import check_record

pytestmark = pytest.mark.e2e


def test_nothing_is_lost_with_an_older_directory(holdfast: Cluster) -> None:
    jetstream = holdfast.layout.nats / "jetstream"
    older = holdfast.layout.nats / "older"
    job = holdfast.run()
    job.until_step(15)
    pid = _freeze_nats(holdfast)
    shutil.copytree(jetstream, older)
    os.kill(pid, signal.SIGCONT)

    # What is published now and recorded by no process is lost with the directory.
    historian = holdfast.pid("historian")
    os.kill(historian, signal.SIGSTOP)
    try:
        rank = job.kill_rank(1)
        job.until_step(rank.step + 5, generation=2)
        pid = _freeze_nats(holdfast)
        shutil.rmtree(jetstream)
        older.rename(jetstream)
        os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(historian, signal.SIGCONT)
    holdfast.until_mended("nats", pid)

    rank = job.kill_rank(2)
    job.until_step(rank.step + 5, generation=3)
    job.finish()
    check_record(holdfast, job)
    assert [row["outcome"] for row in holdfast.incidents(job)] == ["recovered", "recovered"]
    reports = holdfast.query("select distinct source from historian.events where type = 'bus_went_back'")
    expected = {"controller", *(f"agent/{node}" for node in holdfast.members(job))}
    assert expected <= {row["source"] for row in reports}
    assert "The bus lost messages of stream DECISIONS" in holdfast.command("status").stdout


def _freeze_nats(holdfast: Cluster) -> int:
    """Stop it for less time than its clients wait for it; it writes nothing more. Return its pid."""
    pid = holdfast.pid("nats")
    tasks = Path(f"/proc/{pid}/task")
    os.kill(pid, signal.SIGSTOP)
    holdfast.until("every thread of nats is stopped", lambda: all(_is_stopped(task) for task in tasks.iterdir()))
    return pid


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
