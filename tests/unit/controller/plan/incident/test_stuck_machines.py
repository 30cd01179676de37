"""The rung for a machine on which a process is stuck in a hang."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.ladder import choose
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice

NODES = frozenset("abc")


def chosen(checked: frozenset[str]) -> RungChoice:
    incident = Incident(
        id="i", opened_at=datetime(2026, 1, 1, tzinfo=UTC), symptom=Symptom.HANG, failed_step=7, checked=checked
    )
    failure = Failure(symptom=Symptom.HANG, generation=1, step=7, text="stuck", node="b", suspects=("b",))
    return choose(incident, failure, LadderOptions(members=NODES, may_exchange=True), LadderPolicy())


def test_it_leaves_once_another_one_is_there() -> None:
    choice = chosen(frozenset())
    assert (choice.rung, choice.nodes, choice.asks_first) == (Rung.EVICT, ("b",), True)


def test_no_node_is_asked_for_while_tests_of_all_are_concluded() -> None:
    assert not chosen(NODES).asks_first
