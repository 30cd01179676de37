"""A drill for each symptom that is noticed today: injected, noticed, decided, recovered from, with nothing lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from cluster import Cluster, cluster
from drills import DRILLS, ENVIRONMENT, Drill, Outcome, carry_out, divide_gpus

from holdfast.embedded.servers.ports import reserve_ports
from holdfast.faults.requirements import Requirement, lacking
from holdfast.symptoms import TABLE_ONE, Symptom

pytestmark = pytest.mark.e2e

NODES = 3


@pytest.fixture(scope="session")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := lacking(Requirement.LINKS) or lacking(Requirement.MOUNT):
        pytest.skip(reason)
    with cluster(
        tmp_path_factory.mktemp("apart"),
        NODES,
        ENVIRONMENT,
        before=lambda made: divide_gpus(made.layout, NODES),
        namespaces=True,
    ) as running:
        yield running


@pytest.fixture
def struck(request: pytest.FixtureRequest, drill: Drill) -> Cluster:
    """A cluster of three free nodes; for what strikes one node, or its GPU, one where nodes have their own."""
    if not drill.often and "HOLDFAST_DRILLS" not in os.environ:
        pytest.skip("not in every run: set HOLDFAST_DRILLS=1, or run bench/drills.py")
    if not drill.is_of_own_nodes:
        common: Cluster = request.getfixturevalue("holdfast")
        return common
    apart: Cluster = request.getfixturevalue("_apart")
    apart.make_whole()
    return apart


@pytest.mark.parametrize("drill", [pytest.param(drill, id=drill.name) for drill in DRILLS])
def test_what_is_broken_on_purpose_is_noticed_and_recovered_from(struck: Cluster, drill: Drill) -> None:
    if reason := drill.lacking(struck):
        pytest.skip(reason)
    with reserve_ports({}, None) as ports:
        port = ports.nats
    came = carry_out(struck, drill, port)
    assert came.outcome == "recovered"
    assert came.incident == drill.incident or not drill.incident
    assert came.decision == drill.decision or not drill.decision
    assert drill.is_right(came), came
    assert 0 < came.noticed_s < came.decided_s < came.trains_s, came
    # The history shows that it was a drill.
    said = next(
        json.loads(row["body"])
        for row in struck.query("select body from historian.events where type = 'fault_injected' order by at desc")
        if json.loads(row["body"]).get("state") != "undone"
    )
    assert (said["fault"], said.get("symptom", "")) == (drill.fault, drill.symptom or "")


@pytest.mark.parametrize(
    ("fault", "row", "evicted", "right"),
    [
        # Silence looks like a machine that is gone.
        ("cut", "os_kernel_panic", ("last",), True),
        ("cut", "infiniband_error", ("last",), False),
        ("cut", "os_kernel_panic", (), False),
        ("overload-node", "cpu_overload", ("last",), True),
        ("overload-node", "mfu_decline", ("last",), False),
    ],
)
def test_a_drill_is_right_by_what_can_be_known(fault: str, row: str, evicted: tuple[str, ...], right: bool) -> None:
    drill = next(drill for drill in DRILLS if drill.fault == fault)
    came = Outcome(1.0, 2.0, 3.0, drill.incident, drill.decision, "recovered", row, "infrastructure", evicted)
    assert drill.is_right(came) is right


def test_each_row_of_table_1_has_a_drill() -> None:
    assert set(TABLE_ONE) - {drill.symptom for drill in DRILLS} == {Symptom.CODE_DATA_ADJUSTMENT}
