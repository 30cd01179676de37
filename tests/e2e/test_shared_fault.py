"""What inspections report while a job trains: an address that all nodes lose is at fault, and no node leaves for it. A
hint about one node does nothing, until a rank of that node dies."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from records import check_record, timeline

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


NODES = ("node-0", "node-1", "node-2")


def watch_files(made: Cluster) -> None:
    """Give each node of a cluster that is not up yet a check: it warns while a file with the node's name is there."""
    made.layout.create()
    made.layout.lock_file.touch()
    for node in NODES:
        made.layout.node(node).mkdir(exist_ok=True)
        command = f"""/usr/bin/test ! -e '{warning(made, node)}'"""
        check = f'command = "{command}"\ninterval_s = 0.5\nsymptom = "gpu_memory_error"\n'
        made.layout.node_settings(node).write_text(f"[inspections.commands.row_remapping]\n{check}")


def warning(of: Cluster, node: str) -> Path:
    return of.directory / f"{node}.warns"


@pytest.fixture(scope="module")
def _asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose nodes ask an address, and look for a file, twice a second."""
    environment = {
        "HOLDFAST_INSPECTIONS_DISABLED": "kernel",
        "HOLDFAST_INSPECTIONS_SWITCHES": SWITCH,
        "HOLDFAST_INSPECTIONS_SWITCH_S": "0.5",
    }
    with cluster(tmp_path_factory.mktemp("asking"), len(NODES), environment, before=watch_files) as running:
        yield running


@pytest.fixture
def asking(_asking: Cluster) -> Cluster:
    _asking.make_whole()
    return _asking


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
    query = "select * from historian.shared_faults where job = $1 and closed_at is not null"
    (shared,) = asking.until("its end is recorded", lambda: asking.query(query, job.name))
    # The free node may have reported it, too.
    assert shared["thing"] == f"address {SWITCH}" and {*members} <= {*shared["nodes"]} <= {*NODES}
    assert not asking.events(job, "eviction") and not asking.events(job, "incident_opened")
    job.finish()
    check_record(asking, job)


def test_a_hint_about_a_node_starts_tests_when_its_rank_dies(asking: Cluster) -> None:
    job = asking.run()
    job.until_step(5)
    _, node = members = asking.members(job)
    warning(asking, node).touch()
    (hint,) = asking.until("its agent reports the warning", lambda: asking.events(job, "inspection"))
    assert (hint["node"], hint["confidence"]) == (node, "hint")
    job.until_step(job.step() + 10)
    assert job.generation() == 1 and not asking.incidents(job)

    killed = job.kill_rank(3)
    job.until_step(killed.step + 5, generation=3)
    job.finish()
    (started,) = asking.events(job, "checks_started")
    assert f"row_remapping on {node}" in started["reason"]
    # The node passes: it goes on in place, and nobody was evicted for the hint.
    assert asking.members(job) == members and not asking.events(job, "eviction")
    (incident,) = asking.incidents(job)
    told = [kind for kind in timeline(asking, incident["key"]) if kind in STEPS]
    # If the end of a partner arrives first, a restart in place has begun when the rank's own end asks for tests.
    begun = ["reattempt", "generation_started"] if told[1] == "reattempt" else []
    assert told == [STEPS[0], *begun, *STEPS[1:]] and incident["outcome"] == "recovered"
    check_record(asking, job)


STEPS = ("incident_opened", "checks_started", "checks_ended", "reattempt", "generation_started", "incident_closed")


def alerting(asking: Cluster, job: str) -> set[str]:
    rows = asking.query(
        "select distinct node from historian.events where job = $1 and type = 'inspection' and body->>'shared' = $2",
        job,
        f"address {SWITCH}",
    )
    return {row["node"] for row in rows}
