"""Code in the simulated world: ranks run the version that was ordered, and a bug shows where its version runs."""

from __future__ import annotations

from holdfast.events import GenerationStarted, HotUpdate, Rollback
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import read_scenario
from holdfast_proving.world.training import Run

STORY = """
title = "a bad version"
days = 0.1
machines = [{ name = "gpu", count = 5 }]
jobs = [{ name = "train", nodes = 4, step_s = 5.0, version = "one" }]
updates = [{ job = "train", at_h = 1.0, version = "two", within_h = 0.5 }]

[[faults]]
name = "typo"
effect = "crash"
prints = "script"
place = "job"
of = "train"
version = "two"
again_h = 0.0
"""


def test_a_bug_waits_for_its_version_and_leaves_with_it() -> None:
    cluster = Cluster(read_scenario(STORY), seed=1)
    training = cluster.trainings[0]
    ran: list[tuple[int, str]] = []

    def note(run: Run) -> None:
        ran.append((run.generation, run.version))

    training.on_begin.append(note)
    cluster.run()
    events = [event for _, event in cluster.log]
    ordered = [it for it in events if isinstance(it, GenerationStarted)]
    assert ran == [(1, "one"), (2, "two"), (3, "one")]
    assert [training.versions[it.code_version or ""] for it in ordered] == ["one", "two", "one"]
    assert [it.generation for it in cluster.ledger.showings] == [2]
    (update,) = (at_s for at_s, it in cluster.log if isinstance(it, HotUpdate))
    assert 5400.0 <= update <= 5401.0, "no failure came, so it waited for the end of its window"
    assert [training.versions[it.version] for it in events if isinstance(it, Rollback)] == ["one"]
