"""A drill for each symptom that is noticed today: injected, noticed, decided, recovered from, with nothing lost."""

from __future__ import annotations

import json
import os

import pytest
from cluster import Cluster
from drills import DRILLS, Drill, carry_out

from holdfast.embedded.ports import reserve_ports
from holdfast.symptoms import TableOne

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("drill", [pytest.param(drill, id=drill.name) for drill in DRILLS])
def test_what_is_broken_on_purpose_is_noticed_and_recovered_from(holdfast: Cluster, drill: Drill) -> None:
    if reason := drill.lacking(holdfast):
        pytest.skip(reason)
    if not drill.often and "HOLDFAST_DRILLS" not in os.environ:
        pytest.skip("not in every run: set HOLDFAST_DRILLS=1, or run bench/drills.py")
    with reserve_ports({}, None) as ports:
        port = ports.nats
    came = carry_out(holdfast, drill, port)
    assert came.outcome == "recovered"
    assert came.incident == drill.incident or not drill.incident
    assert came.decision == drill.decision or not drill.decision
    assert 0 < came.noticed_s < came.decided_s < came.trains_s, came
    # The history shows that it was a drill.
    (said,) = (
        json.loads(row["body"])
        for row in holdfast.query(
            "select body from historian.events where type = 'fault_injected' order by at desc limit 2"
        )
        if json.loads(row["body"]).get("state") != "undone"
    )
    assert (said["fault"], said.get("symptom", "")) == (drill.fault, drill.symptom or "")


def test_each_row_of_table_1_has_a_drill() -> None:
    assert set(TableOne) - {drill.symptom for drill in DRILLS} == {TableOne.CODE_DATA_ADJUSTMENT}
