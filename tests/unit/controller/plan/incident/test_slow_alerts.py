"""What alerts say of a slow job: which name its incident, and which its slow machine."""

from __future__ import annotations

import pytest

from holdfast.events import Eviction, IncidentOpened
from holdfast.symptoms import Symptom
from tests.scenes.slowed_job import Scene, located, onset


@pytest.mark.parametrize(
    ("confidence", "others", "symptom"),
    [
        ("hint", ("node-0",), Symptom.CPU_OVERLOAD),
        ("hint", ("node-0", "node-2"), Symptom.MFU_DECLINE),
        ("tolerate", ("node-0", "node-2"), Symptom.CPU_OVERLOAD),
    ],
)
def test_a_hint_that_all_nodes_have_does_not_name_why_one_is_slow(
    confidence: str, others: tuple[str, ...], symptom: Symptom
) -> None:
    scene = Scene()
    scene.receive(located())
    scene.reported(100, confidence=confidence, scope="host")
    for node in others:
        scene.reported(100, node=node, confidence="hint", scope="host")
    # Over on one of them a moment earlier.
    scene.reported(101, node="node-0", state="cleared", confidence="hint", scope="host")
    opened = next(event for event in scene.replaced_at(121) if isinstance(event, IncidentOpened))
    assert opened.symptom == symptom


@pytest.mark.parametrize(
    ("strangers_on", "links", "gone"),
    [(("node-1",), (), ["node-1"]), (("node-1",), (("node-0", "node-1"),), ["node-1"]), (("node-0", "node-1"), (), [])],
)
def test_tests_do_not_overrule_foreign_processes_of_one_node(
    strangers_on: tuple[str, ...], links: tuple[tuple[str, str], ...], gone: list[str]
) -> None:
    scene = Scene()
    scene.receive(onset())
    scene.receive(located(nodes=()))
    for node in strangers_on:
        scene.reported(2, node=node)
    scene.at(3)
    scene.receive(located(nodes=(), links=links))
    assert scene.at(60).is_nothing
    events = scene.replaced_at(130) if gone else scene.at(10_000).events
    assert [event.node for event in events if isinstance(event, Eviction)] == gone
