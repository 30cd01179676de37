"""Nodes that cannot do what a job needs are found beside its start, and others take their place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from records import check_record

from holdfast.faults.requirements import Requirement, lacking

pytestmark = pytest.mark.e2e

READS = Path(__file__).parent / "jobs" / "reads.py"


@pytest.fixture(scope="module")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := lacking(Requirement.LINKS) or lacking(Requirement.MOUNT):
        pytest.skip(reason)
    nodes = 4 if "HOLDFAST_LONG" in os.environ else 3
    with cluster(tmp_path_factory.mktemp("apart"), nodes, namespaces=True) as running:
        yield running


@pytest.fixture
def apart(_apart: Cluster) -> Iterator[Cluster]:
    _apart.make_whole()
    yield _apart
    _apart.command("inject", "--undo", check=False)


def hide(of: Cluster, node: str, directory: Path) -> None:
    """Mount nothing over a directory, for one node: what its mount had is not there."""
    agent = str(of.pid(node))
    subprocess.run(["nsenter", "-t", agent, "-m", "mount", "-t", "tmpfs", "none", str(directory)], check=True)


def test_a_node_without_the_data_is_replaced_before_it_trains(apart: Cluster, tmp_path: Path) -> None:
    data, stop = tmp_path / "mount" / "data", tmp_path / "stop"
    data.mkdir(parents=True)
    (data / "tokens").write_text("to be or not to be")
    hide(apart, "node-0", data.parent)
    job = apart.run(
        *("--reads", data / "tokens", "--until", stop), script=READS, nproc=1, options=("--data", str(data))
    )
    apart.until("it trains", lambda: apart.events(job, "steps_measured"))
    # Without the warm-up this ends the job: the script fails twice with an error that looks like its own.
    assert apart.members(job) == ["node-2", "node-1"]
    assert [row["generation"] for row in apart.events(job, "generation_started")] == [1, 2]
    (evicted,) = apart.events(job, "eviction")
    assert evicted["node"] == "node-0" and f"paths of {data} failed" in evicted["reason"]
    assert evicted["blocked_for_s"] == 600.0
    (found,) = [row for row in apart.events(job, "diagnostic_result") if row["status"] == "failed"]
    assert (found["node"], found["test"], found["device"]) == ("node-0", "paths", str(data))
    (incident,) = apart.incidents(job)
    assert incident["symptom"] == "filesystem_mount"
    # The machine is not to blame for what this job's author asks for.
    assert not apart.query("select 1 from controller.node_records where key = 'node-0'")
    stop.touch()
    assert job.exit_code() == 0
    check_record(apart, job)


def test_data_that_no_node_has_evicts_none(apart: Cluster, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    job = apart.run(*("--reads", missing, "--until", missing), script=READS, nproc=1, options=("--data", str(missing)))
    assert job.exit_code() == 1
    assert not apart.events(job, "eviction")
    found, *_ = apart.events(job, "shared_fault_found")
    assert found["thing"] == str(missing) and "no node of the job has it" in found["reason"]
    assert str(missing) in job.errors()


@pytest.mark.long
def test_a_node_that_reaches_no_other_is_replaced(apart: Cluster, tmp_path: Path) -> None:
    data, stop = tmp_path / "tokens", tmp_path / "stop"
    data.write_text("to be or not to be")
    for other in ("node-1", "node-2", "node-3"):
        apart.command("inject", "cut", "--node", "node-0", "-o", f"off={other}")
    job = apart.run(*("--reads", data, "--until", stop), script=READS, nnodes=3, nproc=1)
    apart.until("it trains", lambda: apart.events(job, "steps_measured"))
    assert set(apart.members(job)) == {"node-1", "node-2", "node-3"}
    (evicted,) = apart.events(job, "eviction")
    assert evicted["node"] == "node-0" and "warm-up" in evicted["reason"]
    stop.touch()
    assert job.exit_code() == 0
