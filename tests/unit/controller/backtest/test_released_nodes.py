"""A person who releases a node has its record begin anew, in a backtest too: no event of the job shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.events import NodeReleaseRequested
from holdfast.fresh_ids import uuid7
from holdfast.settings.load import Settings
from holdfast_controller.backtest.inputs import Input
from holdfast_controller.backtest.lockstep import _Lockstep
from holdfast_controller.backtest.policies import rules_of
from holdfast_controller.plan.planner import Planner
from holdfast_controller.plan.record.finding import earlier_evictions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_an_eviction_before_a_release_does_not_count() -> None:
    rules = rules_of(Settings(), {})
    run = _Lockstep(Planner(rules), Planner(rules))
    evicted = NodeRecord(node="n", marks=(Mark(at=NOW, kind=MarkKind.EVICTED, text="", event=uuid7()),))
    release = NodeReleaseRequested(id=uuid7(), at=NOW + timedelta(minutes=1), source="standby", node="n", reason="r")
    for planner in (run._recorded, run._other):
        planner.rules.records.update({"n": evicted})
    run.take(Input(release.at, release, None, ()))
    for planner in (run._recorded, run._other):
        assert earlier_evictions(planner.rules.records["n"], release.at, rules.record) == 0
