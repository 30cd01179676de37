"""NATS comes back with an older copy of its directory, in the middle of training."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
from cluster import Cluster
from records import check_record

pytestmark = pytest.mark.e2e


def test_nothing_is_lost_with_an_older_directory(holdfast: Cluster) -> None:
    jetstream = holdfast.layout.nats / "jetstream"
    older = holdfast.layout.nats / "older"
    job = holdfast.run()
    job.until_step(15)
    pid = holdfast.freeze_nats()
    shutil.copytree(jetstream, older)
    os.kill(pid, signal.SIGCONT)

    # What is published now and recorded by no process is lost with the directory.
    historian = holdfast.pid("historian")
    os.kill(historian, signal.SIGSTOP)
    try:
        rank = job.kill_rank(1)
        job.until_step(rank.step + 5, generation=2)
        pid = holdfast.freeze_nats()
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
    reports = holdfast.query("select body from historian.events where type = 'bus_went_back' order by at")
    sources = {report["source"]: report for report in (json.loads(row["body"]) for row in reports)}
    agents = {f"agent/{node}" for node in holdfast.members(job)}
    assert {"controller", *agents} <= sources.keys()
    # A node may notice it only when it has obeyed the next order as well.
    assert {(sources[it]["newest_job"], sources[it]["newest_generation"]) for it in agents} <= {
        (job.name, 2),
        (job.name, 3),
    }
    assert "The bus lost messages of stream DECISIONS" in holdfast.command("status").stdout
