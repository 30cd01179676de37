"""A drill for each symptom that is noticed today: injected, noticed, decided, recovered from, with nothing lost.

All but one run side by side on one cluster, where each node has a separate network, mounts and a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from drill_lanes import NODES, SETTINGS, Lanes, lanes
from drill_steps import carry_out
from drills import DRILLS, Drill, Outcome, divide_gpus

from holdfast.faults.requirements import Requirement, lacking
from holdfast.symptoms import TABLE_ONE, Symptom
from holdfast_agent.zygote.zygote import PID_FILE

pytestmark = pytest.mark.e2e

# In the order in which they begin. What takes longest is first, so that no lane ends with it alone, and no test waits
# for a drill of another one.
SIDE_BY_SIDE = sorted((drill for drill in DRILLS if not drill.is_without_log), key=lambda drill: not drill.is_slow)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        tmp_path_factory.mktemp("apart"),
        NODES,
        SETTINGS,
        has_own_nursery=True,
        before=lambda made: divide_gpus(made.layout, NODES),
        namespaces=not lacking(Requirement.LINKS) and not lacking(Requirement.MOUNT),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def begun(apart: Cluster, request: pytest.FixtureRequest) -> Iterator[Lanes]:
    """All drills that this run asks for."""
    asked = [drill for item in request.session.items if (drill := _asked_by(item)) is not None]
    with lanes(apart.directory, [drill for drill in asked if not (drill.is_without_log or drill.lacking(apart))]) as it:
        yield it


def test_nodes_with_separate_networks_share_one_import_of_torch(apart: Cluster) -> None:
    if apart.info.fabric is None:
        pytest.skip("this machine allows no networks for nodes")
    for node in apart.info.nodes:
        zygote = int((apart.layout.node(node) / PID_FILE).read_text())
        parent = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent == apart.pid("nursery"), f"the zygote of {node} was forked by another process"


def _asked_by(item: pytest.Item) -> Drill | None:
    """Return the drill of a test that is not skipped."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return None if item.get_closest_marker("skip") else given.get("drill")


@pytest.mark.parametrize(
    "drill",
    [
        # On a busy machine every job is slow.
        pytest.param(drill, id=drill.name, marks=[pytest.mark.long] if drill.is_slow else [])
        for drill in SIDE_BY_SIDE
    ],
)
@pytest.mark.timeout(600)
def test_what_is_broken_on_purpose_is_noticed_and_recovered_from(apart: Cluster, begun: Lanes, drill: Drill) -> None:
    if reason := drill.lacking(apart):
        pytest.skip(reason)
    check(apart, drill, begun.outcome(drill))


@pytest.mark.parametrize("drill", [pytest.param(drill, id=drill.name) for drill in DRILLS if drill.is_without_log])
def test_without_the_log_of_the_kernel_it_is_recovered_from_all_the_same(holdfast: Cluster, drill: Drill) -> None:
    if reason := drill.lacking(holdfast):
        pytest.skip(reason)
    check(holdfast, drill, carry_out(holdfast, drill, 0))


def check(struck: Cluster, drill: Drill, came: Outcome) -> None:
    assert came.outcome == "recovered"
    assert came.incident == drill.incident or not drill.incident
    assert came.decision == drill.decision or not drill.decision
    assert drill.is_right(came), came
    assert 0 < came.noticed_s < came.decided_s < came.trains_s, came
    # The history shows that it was a drill.
    (row, *_) = struck.query(
        "select body from historian.events where type = 'fault_injected' and body->>'injection' = $1 order by at",
        came.injection,
    )
    said = json.loads(row["body"])
    assert (said["fault"], said.get("symptom", "")) == (drill.fault, drill.symptom or "")
    print(f"{drill.symptom}: {came}")


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
