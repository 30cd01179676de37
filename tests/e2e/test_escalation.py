"""The same node fails again before the job is past the point where it broke: it is evicted, a standby takes over."""

from __future__ import annotations

import pytest
from cluster import Cluster
from records import check_record, timeline

pytestmark = pytest.mark.e2e


def test_a_node_that_fails_twice_in_one_incident_is_evicted_until_released(holdfast: Cluster) -> None:
    # Without checkpoints every generation begins anew, the later ones minutes from where the first one failed.
    job = holdfast.run("--checkpoint-every", "0", "--step-s", "0.005", "--later-step-s", "1.0")
    job.until_step(200)
    members = holdfast.members(job)
    (spare,) = {name for name, node in holdfast.nodes().items() if node["state"] == "standby"}
    job.kill_rank(2)
    job.until_step(1, generation=2)
    job.kill_rank(3)
    # Checks come between, of a generation of their own; they find nothing.
    job.until_step(1, generation=4)

    holdfast.until("the new members are recorded", lambda: holdfast.members(job) == [members[0], spare])
    node = holdfast.nodes()[members[1]]
    assert (node["state"], node["job"]) == ("evicted", None)
    assert node["blocked_until"] is not None and "failed 2 times within one incident" in node["reason"]
    assert node["blocked_until"].timestamp() - node["updated_at"].timestamp() == pytest.approx(24 * 3600, abs=60)

    holdfast.command("nodes", "release", members[1])
    holdfast.until("the node is a standby again", lambda: holdfast.nodes()[members[1]]["state"] == "standby")
    refused = holdfast.command("nodes", "release", members[1], check=False)
    assert refused.returncode == 1 and "is not on the blocklist" in refused.stderr

    (incident,) = holdfast.incidents(job)
    assert incident["closed_at"] is None, "the job is not past the step at which it failed"
    job.finish()
    check_record(holdfast, job)
    (incident,) = holdfast.incidents(job)
    assert (incident["outcome"], incident["attempts"]) == ("recovered", 2)
    told = timeline(holdfast, incident["key"])
    steps = ("incident_opened", "reattempt", "checks_started", "checks_ended", "eviction", "nodes_granted")
    assert [kind for kind in told if kind in steps] == list(steps)


def test_a_node_is_not_blamed_for_failures_of_two_incidents(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    members = holdfast.members(job)
    for generation in (2, 3):
        killed = job.kill_rank(2)
        job.until_step(killed.step + 2, generation=generation)
        holdfast.until("the incident is closed", lambda: all(row["closed_at"] for row in holdfast.incidents(job)))
    assert holdfast.members(job) == members
    job.finish()
    check_record(holdfast, job)
    assert [row["outcome"] for row in holdfast.incidents(job)] == ["recovered", "recovered"]
