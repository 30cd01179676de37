"""An address that all nodes have to reach stops answering: it is at fault, once, and no node leaves for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import Cluster, cluster
from records import check_record

pytestmark = pytest.mark.e2e

SWITCH = "127.77.0.1"
"""An address of this machine alone, which every agent asks."""


@contextmanager
def silent(address: str) -> Iterator[None]:
    """Let the kernel refuse what is sent to a loopback address."""
    route = ["unreachable", f"{address}/32", "table", "local"]
    added = subprocess.run(["ip", "route", "add", *route], capture_output=True, text=True, check=False)
    if added.returncode:
        pytest.skip(f"no route can be added here: {added.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "delete", *route], check=True)


@pytest.fixture
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose nodes ask an address twice a second."""
    environment = {
        "HOLDFAST_INSPECTIONS_DISABLED": "kernel",
        "HOLDFAST_INSPECTIONS_SWITCHES": SWITCH,
        "HOLDFAST_INSPECTIONS_SWITCH_S": "0.5",
    }
    with cluster(tmp_path_factory.mktemp("asking"), 3, environment) as running:
        yield running


def test_a_job_trains_on_when_all_its_nodes_lose_the_same_address(asking: Cluster) -> None:
    job = asking.run()
    job.until_step(5)
    members = asking.members(job)
    with silent(SWITCH):
        asking.until("both nodes report it", lambda: len(alerting(asking, job.name)) == 2 or None)
        (opened,) = asking.until("the fault is an incident", lambda: asking.incidents(job))
        assert f"address {SWITCH}" in opened["summary"] and opened["closed_at"] is None
        job.until_step(job.step() + 20)
        assert job.generation() == 1 and asking.members(job) == members
    asking.until("the incident is over", lambda: asking.incidents(job)[0]["closed_at"])
    (shared,) = asking.query("select * from historian.shared_faults where job = $1", job.name)
    assert shared["thing"] == f"address {SWITCH}" and sorted(shared["nodes"]) == sorted(members)
    assert not asking.events(job, "eviction") and not asking.events(job, "incident_opened")
    job.finish()
    check_record(asking, job)


def alerting(asking: Cluster, job: str) -> set[str]:
    rows = asking.query(
        "select distinct node from historian.events where job = $1 and type = 'inspection' and body->>'shared' = $2",
        job,
        f"address {SWITCH}",
    )
    return {row["node"] for row in rows}
