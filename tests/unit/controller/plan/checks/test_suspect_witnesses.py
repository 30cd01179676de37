"""Witnesses of a test of suspects: free nodes that distinguish a bad node from its partner, and show which is slow."""

from __future__ import annotations

import pytest

from holdfast.events import (
    Eviction,
    JobFinished,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodesReleased,
    NodesRequested,
    ProcessExited,
    SuspectsTested,
)
from holdfast.events.parts.job import Grant
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.incident import Incident
from tests.scenes.suspect_test import CAUSE, EXIT, NOW, TRAINING, Run


def test_a_witness_distinguishes_two_suspects() -> None:
    run = Run("a", "b")
    claim = run.one(NodesRequested)
    assert (claim.only, claim.count, claim.witnesses) == (("a", "b"), 3, 2)
    run.start("w", "a", "b")
    run.meet(wa="failed", wb="passed", ab="failed")
    found = run.one(SuspectsTested)
    assert ([it.node for it in found.at_fault], found.cleared, found.in_doubt) == (["a"], ("b",), ())
    assert run.revoked() == {"b": 5} and "tested with w" in found.reason


def test_one_of_two_suspects_whose_link_alone_fails_comes_back() -> None:
    run = Run("a", "b")
    run.start("w", "a", "b")
    run.meet(wa="passed", wb="passed", ab="failed")
    found = run.one(SuspectsTested)
    assert (found.at_fault, found.cleared, found.in_doubt) == ((), ("a",), ("b",))
    assert run.revoked() == {"a": 5}


def test_a_witness_that_fails_with_both_suspects_accuses_neither() -> None:
    run = Run("a", "b")
    run.start("w", "a", "b")
    run.meet(wa="failed", wb="failed", ab="passed")
    found = run.one(SuspectsTested)
    assert (found.at_fault, found.cleared, found.in_doubt) == ((), ("a", "b"), ()), "it is the witness"
    assert "witness w fails" in found.reason
    eviction = run.one(Eviction)
    assert (eviction.node, eviction.epoch, eviction.job) == ("w", 5, run.state.job), "no job gets it next"
    assert eviction.blocked_for_s > 0.0 and not eviction.together


def test_a_suspect_and_one_of_two_witnesses_that_fail_by_themselves_are_both_at_fault() -> None:
    run = Run("a")
    run.start("w", "x", "a")
    run.answer("x")
    for node in ("w", "a"):
        run.answer(node, status="failed", detail="7 of 256 rows are wrong")
    found = run.one(SuspectsTested)
    assert ([it.node for it in found.at_fault], found.in_doubt) == (["a"], ())
    assert run.one(Eviction).node == "w", "the other witness shows that the tests are sound"


def test_a_test_that_no_machine_passes_accuses_none() -> None:
    run = Run("a")
    run.start("w", "x", "a")
    for node in ("w", "x", "a"):
        run.answer(node, status="failed", detail="7 of 256 rows are wrong")
    found = run.one(SuspectsTested)
    assert (found.at_fault, found.in_doubt) == ((), ("a",))
    assert not [event for event in run.emitted if isinstance(event, Eviction)]


def test_a_witness_whose_process_ends_without_an_answer_stays_in_the_pool() -> None:
    run = Run("a", "b")
    run.start("w", "a", "b")
    run.answer("a")
    run.answer("b")
    run.receive(ProcessExited, **EXIT, node="w", detail="not found when the agent came back")
    assert "witness w fails" in run.one(SuspectsTested).reason
    assert not [event for event in run.emitted if isinstance(event, Eviction)], "nothing accuses it"


def test_a_suspect_that_a_witness_cannot_reach_is_at_fault_though_its_partner_was_not_tested() -> None:
    run = Run("a", "b")
    run.start("w", "a", "b")
    run.meet(wa="failed", wb="passed")
    found = run.one(SuspectsTested)
    assert ([it.node for it in found.at_fault], found.cleared, found.in_doubt) == (["a"], ("b",), ())
    run = Run("a")
    run.start("w", "a")
    run.meet(wa="failed")
    assert [it.node for it in run.one(SuspectsTested).at_fault] == ["a"] and not run.revoked()


def test_without_a_witness_two_are_tested_alone_and_one_of_them_is_not() -> None:
    run = Run("a", "b")
    run.receive(NodesAwaited, wanted=3, available=2, missing="no other node is free")
    run.wait()
    claim = [event for event in run.emitted if isinstance(event, NodesRequested)][-1]
    assert (claim.only, claim.count, claim.witnesses) == (("a", "b"), 2, 0)
    run.start("a", "b")
    run.meet(ab="failed")
    # A job may wait for it. If it is the wrong one, its next link fails too.
    found = run.one(SuspectsTested)
    assert (found.cleared, found.in_doubt) == (("a",), ("b",)) and run.revoked() == {"a": 5}

    run = Run("a")
    run.receive(NodesAwaited, wanted=2, available=1, missing="no other node is free")
    run.wait()
    assert run.state.phase_name == "failed" and run.one(SuspectsTested).in_doubt == ("a",)
    assert "no free node to test a with" in run.one(JobFinished).reason


def test_the_loss_of_a_suspect_leaves_the_other_its_witness() -> None:
    run = Run("a", "b")
    run.receive(NodesAwaited, wanted=3, available=2, missing="b is lost", missing_nodes=("b",))
    run.wait()
    claim = [event for event in run.emitted if isinstance(event, NodesRequested)][-1]
    assert (claim.only, claim.count, claim.witnesses) == (("a",), 2, 2)
    run.start("w", "a")
    run.meet(wa="passed")
    found = run.one(SuspectsTested)
    assert (found.cleared, found.in_doubt) == (("a",), ("b",)) and run.revoked() == {"a": 5}


SLOWED = TRAINING.update(
    incident=Incident(id=CAUSE, opened_at=NOW, symptom=Symptom.FAIL_SLOW, failed_step=7, named="mfu_decline")
)
QUARTET = [("a", "b"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("x", "y")]


def test_slow_nodes_are_tested_with_witnesses_that_return_to_the_pool() -> None:
    run = Run("a", of=SLOWED)
    claim = run.one(NodesRequested)
    assert (claim.only, claim.count, claim.witnesses) == (("a",), 1, 2)
    run.start("x", "y", "a")
    assert run.state.nodes == ("x", "y", "a")
    run.reach({"a": 10.0, "x": 30.0, "y": 29.0}, {("a", "x"): 1.0, ("a", "y"): 1.1, ("x", "y"): 1.0})
    found = run.one(SuspectsTested)
    assert (found.cleared, [it.node for it in found.at_fault], found.in_doubt) == ((), ["a"], ())
    assert "it computes at 10 GFLOP/s, the others at 30" in found.reason
    assert not run.revoked()
    (released,) = (event for event in run.emitted if isinstance(event, NodesReleased))
    assert released.nodes == ("x", "y", "a")


def test_a_node_as_fast_as_the_others_comes_back() -> None:
    run = Run("a", of=SLOWED)
    run.start("x", "y", "a")
    run.reach({"a": 27.0, "x": 30.0, "y": 29.0}, {("a", "x"): 1.0, ("a", "y"): 0.6, ("x", "y"): 1.0})
    assert (run.one(SuspectsTested).cleared, run.revoked()) == (("a",), {"a": 5})


@pytest.mark.parametrize(
    ("slow", "cleared", "at_fault", "in_doubt"),
    [
        ([("a", "b")], (), [], ("a", "b")),
        ([("a", "b"), ("a", "x"), ("a", "y")], ("b",), ["a"], ()),
        ([], ("a", "b"), [], ()),
    ],
)
def test_the_faulty_end_of_a_slow_link_is_named(
    slow: list[tuple[str, str]], cleared: tuple[str, ...], at_fault: list[str], in_doubt: tuple[str, ...]
) -> None:
    run = Run("a", "b", of=SLOWED)
    run.start("x", "y", "a", "b")
    run.reach(dict.fromkeys("abxy", 30.0), {pair: 0.1 if pair in slow else 1.0 for pair in QUARTET})
    found = run.one(SuspectsTested)
    assert (found.cleared, [it.node for it in found.at_fault], found.in_doubt) == (cleared, at_fault, in_doubt)


def test_a_slow_node_without_witnesses_stays_blocked() -> None:
    run = Run("a", of=SLOWED)
    run.start("a")
    run.reach({"a": 30.0}, {})
    found = run.one(SuspectsTested)
    assert (found.cleared, found.in_doubt) == ((), ("a",)) and "no other node to compare with" in found.reason


def test_a_lost_witness_that_is_not_needed_is_not_waited_for() -> None:
    run = Run("a", of=SLOWED)
    run.receive(NodeLost, node="x", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start("x", "y", "a")
    assert (run.state.nodes, run.state.vacancies, run.state.phase_name) == (("y", "a"), 0, "starting")
    run.receive(NodeLost, node="y", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.reach({"a": 30.0}, {})
    assert run.one(SuspectsTested).in_doubt == ("a",)


def test_a_grant_of_an_older_claim_takes_no_place_of_a_suspect() -> None:
    run = Run("a", "b", of=SLOWED)
    first = run.state.claim
    run.receive(NodesAwaited, wanted=2, available=1, missing="b is lost", missing_nodes=("b",))
    run.wait()
    grants = tuple(Grant(node=node, epoch=5, address="10.0.0.1", store_ports=(29500,)) for node in "xyab")
    run.receive(NodesGranted, grants=grants, claim=first)
    assert (run.state.nodes, run.state.phase_name) == (("x", "y", "a", "b"), "starting")


def test_a_needed_witness_that_is_lost_before_it_joins_is_requested_again_and_comes_first() -> None:
    run = Run("a", "b")
    run.receive(NodeLost, node="w", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start("w", "a", "b")
    assert (run.state.nodes, run.state.phase_name) == (("a", "b"), "claiming")
    claim = [event for event in run.emitted if isinstance(event, NodesRequested)][-1]
    assert (claim.only, claim.count, claim.witnesses) == ((), 1, 2)
    run.start("x")
    assert (run.state.nodes, run.state.phase_name) == (("x", "a", "b"), "starting")


def test_the_test_continues_without_a_needed_witness_that_is_lost_again() -> None:
    run = Run("a", "b")
    run.receive(NodeLost, node="w", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start("w", "a", "b")
    run.receive(NodesAwaited, wanted=1, available=0, missing="no other node is free")
    run.wait()
    assert (run.state.nodes, run.state.phase_name) == (("a", "b"), "starting")
    run.meet(ab="passed")
    assert run.one(SuspectsTested).cleared == ("a", "b")


def test_a_witness_that_is_lost_while_a_suspect_is_awaited_is_replaced() -> None:
    run = Run("a", "b")
    run.receive(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start("w", "a", "b")
    run.receive(NodeLost, node="w", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.receive(NodesAwaited, wanted=1, available=0, missing="b is lost", missing_nodes=("b",))
    run.wait()
    claim = [event for event in run.emitted if isinstance(event, NodesRequested)][-1]
    assert (claim.only, claim.count, claim.witnesses) == ((), 1, 2)
    run.start("x")
    run.meet(xa="passed")
    assert run.one(SuspectsTested).cleared == ("a",)


def test_a_broken_connection_to_a_witness_accuses_the_slow_suspect() -> None:
    run = Run("a", "b", of=SLOWED)
    run.start("x", "y", "a", "b")
    run.meet(ax="failed", ay="passed", bx="passed", by="passed", ab="passed", xy="passed")
    found = run.one(SuspectsTested)
    assert [it.node for it in found.at_fault] == ["a"] and "a" not in found.cleared
