"""A second agent with the name of a node that trains: it is refused, and the job trains on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from records import check_record

from holdfast.node import process_mark
from tests.scenes.order_keys import OF_AGENTS

pytestmark = pytest.mark.e2e


def test_a_second_agent_of_a_node_disturbs_nothing(holdfast: Cluster, tmp_path: Path) -> None:
    job = holdfast.run()
    job.until_step(10)
    before = job.pids()
    node = holdfast.members(job)[1]
    flags = ("--node", node, "--state-dir", str(tmp_path / "state"))
    with (tmp_path / "log").open("wb") as log:
        second = subprocess.Popen(
            (sys.executable, "-P", "-m", "holdfast_agent", *flags),
            env=os.environ | {"HOLDFAST_NATS_URL": holdfast.info.nats_url} | OF_AGENTS,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        holdfast.until("the second agent ends", lambda: second.poll() is not None)
        assert second.returncode == 1, (tmp_path / "log").read_text()
        shown = f"a second agent of this name (pid {second.pid} on "
        holdfast.until("`holdfast nodes` shows it", lambda: shown in holdfast.command("nodes").stdout)
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
        process_mark.end_marked(process_mark.mark_of(tmp_path / "state"))
    assert f"pid {holdfast.pid(node)} on" in (tmp_path / "log").read_text()
    job.until_step(job.step() + 10)
    assert job.pids() == before
    job.finish()
    assert job.generation() == 1
    check_record(holdfast, job)
    assert not holdfast.incidents(job)
