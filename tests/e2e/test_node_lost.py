"""A whole node is lost: agent, zygote and ranks at one stroke."""

from __future__ import annotations

import pytest
from cluster import Cluster
from records import check_record, phases, timeline

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("node_rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_standby_takes_over(holdfast: Cluster, node_rank: int) -> None:
    """With node rank 0 the host of the generation's store goes as well."""
    job = holdfast.run()
    job.until_step(15)
    members = holdfast.members(job)
    lost = members[node_rank]
    (spare,) = {name for name, node in holdfast.nodes().items() if node["state"] == "standby"}
    holdfast.power_off(lost)
    job.until_step(job.step() + 10, generation=2)

    holdfast.until(
        "the incident is closed", lambda: [row["outcome"] for row in holdfast.incidents(job)] == ["recovered"]
    )
    (incident,) = holdfast.incidents(job)
    assert incident["symptom"] == "node_lost"
    members[node_rank] = spare
    holdfast.until("the new members are recorded", lambda: holdfast.members(job) == members)
    inventory = holdfast.nodes()
    assert (inventory[lost]["state"], inventory[lost]["job"]) == ("lost", None)
    assert inventory[lost]["blocked_until"] is None and "no heartbeat" in inventory[lost]["reason"]

    # Silence proved nothing: a node that is heard again is as good as any.
    holdfast.power_on(lost)
    holdfast.until("the node is a standby again", lambda: holdfast.nodes()[lost]["state"] == "standby")
    job.finish()
    check_record(holdfast, job)
    assert {"node_lost", "eviction", "nodes_granted", "first_step"} <= set(timeline(holdfast, incident["key"]))
    spent = phases(holdfast, incident["key"])
    assert spent and spent["detect_s"] >= 3.0 and spent["total_s"] is not None, spent
