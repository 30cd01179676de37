"""Bad numbers of one node: what other nodes report of the same step decides whether they name it."""

from __future__ import annotations

import math

import pytest

from holdfast.settings.findings.corruption import CorruptionPolicy
from tests.scenes.analyzer import Ranks, Scene

AFTER = CorruptionPolicy().certified_after_steps


def test_a_loss_that_is_bad_on_all_nodes_at_one_step_is_reported_as_such_whichever_node_reports_first() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0), waits=False)
    assert not scene.faults
    scene.receive(ranks.measured(0, range(31, 36), lambda step: math.nan if step >= 33 else 1.0), waits=False)
    (fault,) = scene.faults
    assert (fault.step, fault.elsewhere) == (33, "bad")
    scene.receive(ranks.measured(1, range(36, 40), lambda step: math.nan))
    assert len(scene.faults) == 1


@pytest.mark.parametrize("culprit_is_first", [True, False])
def test_a_loss_that_is_bad_on_one_node_first_is_that_nodes(culprit_is_first: bool) -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    at_fault = ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0)
    # The weights are spoiled then.
    follows = ranks.measured(0, range(31, 36), lambda step: math.nan if step >= 34 else 1.0)
    scene.receive(*((at_fault, follows) if culprit_is_first else (follows, at_fault)), waits=False)
    fault = scene.faults[-1]
    assert (fault.step, fault.rank, fault.elsewhere) == (33, 1, "sound")


def test_a_fault_is_reported_though_other_nodes_report_no_more() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0), waits=False)
    scene.wait()
    (fault,) = scene.faults
    assert (fault.step, fault.elsewhere) == (33, "")
    scene.wait()
    assert len(scene.faults) == 1


@pytest.mark.parametrize("is_over", [False, True])
def test_a_fault_that_waits_is_reported_once_though_the_analyzer_is_restarted(is_over: bool) -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0), waits=False)
    assert not scene.faults
    scene.restart()
    if is_over:
        scene.receive(ranks.measured(0, range(31, 33), generation=2), waits=False)
    scene.wait()
    scene.restart()
    scene.wait()
    (fault,) = scene.faults
    assert (fault.generation, fault.step, fault.rank, fault.certified) == (1, 33, 1, 30 - AFTER)
    assert fault.elsewhere == "", "half a comparison names no node"


def test_a_fault_that_waits_is_reported_once_its_generation_is_over() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0), waits=False)
    after = ranks.measured(0, range(31, 33), generation=2)
    scene.receive(after, commits=False, waits=False)
    scene.receive(after, waits=False)
    (fault,) = scene.faults
    assert (fault.generation, fault.step, fault.certified) == (1, 33, 30 - AFTER)


@pytest.mark.parametrize(("other", "elsewhere"), [(5.5, "bad"), (1.0, "sound")])
def test_a_loss_that_jumps_on_one_node_is_that_nodes(other: float, elsewhere: str) -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    for rank, jumped in ((0, other), (1, 6.0)):
        scene.receive(ranks.measured(rank, range(31, 40), lambda step, high=jumped: high if step >= 33 else 1.0))
    (fault,) = scene.faults
    assert (fault.step, fault.rank, fault.kind, fault.elsewhere) == (33, 1, "jump", elsewhere)
