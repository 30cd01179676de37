"""A node that breaks again and again, each time in a new incident: by its record it is checked, then evicted.

Nothing but what its rank prints accuses it: it comes back once that rank prints the same on the next node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from cluster import Cluster, cluster
from records import check_record

pytestmark = pytest.mark.e2e

CRASHES = 8


@pytest.fixture
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("remembering"), 3, {"HOLDFAST_MECHANISMS_RECORD": "act"}) as running:
        yield running


def test_a_node_that_breaks_again_is_checked_then_evicted_and_no_standby(remembering: Cluster) -> None:
    broken = remembering.directory / "broken"
    job = remembering.run("--broken", broken, "--fault-rank", "2")
    job.until_step(5)
    (victim,) = remembering.members(job)[1:]
    crashes = 0
    while victim in remembering.members(job) and crashes < CRASHES:
        crashes += 1
        broken.touch()
        job.until("the incident is over", partial(_are_closed, remembering, job.name, crashes))
    assert crashes <= 3

    (*_, last) = incidents = remembering.incidents(job)
    checked = [event["incident"] for event in remembering.events(job, "checks_started")]
    assert checked and checked[0] in [incident["key"] for incident in incidents[:2]]
    (eviction,) = remembering.events(job, "eviction")
    assert (eviction["incident"], eviction["node"]) == (last["key"], victim)
    exits = {event["id"] for event in remembering.events(job, "process_exited") if event["node"] == victim}
    assert len(exits & set(eviction["evidence"])) >= crashes
    assert remembering.nodes()[victim]["state"] == "evicted" and not eviction.get("together")

    shown = json.loads(remembering.command("nodes", victim, "--json").stdout)
    assert shown["chance"] > 0.7 and shown["counts"]["evicted"] == 1
    assert [row["kind"] for row in shown["history"] if row["counts"]] == ["hardware"] * crashes
    assert f"{victim} is evicted" in remembering.command("nodes", victim).stdout

    # Nothing but words accuses it, and they follow their rank: the next node prints them too.
    broken.touch()
    job.until("the incident is over", partial(_are_closed, remembering, job.name, crashes + 1))
    (revoked,) = remembering.events(job, "eviction_revoked")
    assert revoked["node"] == victim and "fails in the same way on" in revoked["reason"]
    remembering.until("it is a standby again", lambda: remembering.nodes()[victim]["state"] == "standby")
    job.finish()
    check_record(remembering, job)


def _are_closed(of: Cluster, job: str, number: int) -> bool:
    rows = of.query("select key from controller.incidents where job = $1 and closed_at is not null", job)
    return len(rows) == number
