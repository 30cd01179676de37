"""ByteRobust's over-evictions from stacks to the end, by analyzer, controller and standby with default settings.

The proving ground's scenarios have the published stacks. Each story begins with the hang: tests/golden/over_evictions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.events import (
    Event,
    Eviction,
    EvictionRevoked,
    GenerationStarted,
    HangFound,
    HangSuspected,
    IncidentClosed,
    IncidentOpened,
    JobFinished,
    JobSubmitted,
    NodesAwaited,
    NodesGranted,
    NodesRequested,
    SuspectsTested,
    Withheld,
)
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import load_scenario
from holdfast_standby.service import Standby
from tests.golden.trace import told

TOLD = (
    *(HangSuspected, HangFound, IncidentOpened, NodesRequested, NodesGranted, NodesAwaited, Withheld, Eviction),
    *(GenerationStarted, IncidentClosed, JobSubmitted, JobFinished, SuspectsTested, EvictionRevoked),
)
NAMES = ("byterobust-figure-7", "byterobust-section-5-2", "byterobust-section-9")


@pytest.mark.parametrize("name", NAMES)
def test_an_over_eviction(name: str, request: pytest.FixtureRequest) -> None:
    path = Path(__file__).parent / "over_evictions" / f"{name}.story"
    text = "\n".join(_story(name)) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(text)
    assert text == path.read_text(), "the decisions differ from the story; --rewrite if that is meant"


def _story(name: str) -> list[str]:
    scenario = load_scenario(name)
    cluster = Cluster(scenario, seed=1).run()
    began_s = next(at_s for at_s, event in cluster.log if isinstance(event, HangSuspected))
    found = next(event for _, event in cluster.log if isinstance(event, HangFound))
    lines = [f"# {scenario.title}"]
    for at_s, event in cluster.log:
        if at_s >= began_s and isinstance(event, TOLD):
            lines.append(f"{at_s - began_s:6.1f} {_line(event, found)}")
    assert isinstance(cluster.standby.decider, Standby)
    nodes = cluster.standby.decider.inventory.nodes
    return [*lines, *(f"= {node}: {nodes[node].state}" for node in found.group)]


def _line(event: Event, found: HangFound) -> str:
    """Return an event as one line, with the text of the finding once."""
    if event is found:
        return f"{told(event)} [{' '.join(found.group)}]: {found.summary}"
    return told(event).replace(found.summary, "...")
