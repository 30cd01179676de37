"""A job that gets slow: noticed, located by what its nodes tell, tested while training is held, and emitted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from holdfast.events import (
    CollectivesProfiled,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    JobFinished,
    SlownessTested,
    StepsMeasured,
)
from holdfast.events.parts.samples import ProfiledCalls, RankProfile
from holdfast.settings.findings.slow import SlowPolicy
from tests.scenes.analyzer import START
from tests.scenes.slow_job import NODES, Scene, slow_scene


def test_onset_and_relief_are_found_within_three_iterations_and_reported_once() -> None:
    scene = slow_scene(SlowPolicy(locate=False))
    (onset,) = scene.emitted
    assert isinstance(onset, FailSlowOnset)
    assert (onset.iteration, onset.ranks, onset.generation) == (30, (0, 1), 1)
    assert onset.detected_after <= 3
    assert abs(onset.before_s - 1.0) < 0.05
    assert abs(onset.after_s - 2.0) < 0.1
    scene.train(20, 2.0)
    scene.train(3)
    (_, relief) = scene.emitted
    assert isinstance(relief, FailSlowRelieved)
    assert (relief.is_over, relief.iteration) == (True, 53)
    assert relief.detected_after <= 3
    assert not scene.wanted


def test_a_slow_node_is_found_tested_and_named() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    (asked,) = scene.wanted
    assert (asked.tests, asked.is_over, asked.generation) == (None, False, 1)
    # Only those since the onset: what was before is what it is compared with.
    assert 2 <= asked.iterations <= 5
    scene.tell((0.99, 1.99, 0.99))
    (_, tested) = scene.wanted
    assert tested.tests is not None
    assert 1 in tested.tests.compute_ranks
    assert set(tested.tests.compute_ranks) > {1}
    assert tested.tests.after_step > scene.iteration
    assert scene.now < tested.tests.held_by < tested.tests.until
    scene.hold((0.01, 0.05, 0.01))
    assert [wanted.stage for wanted in scene.wanted] == ["profile", "hold", "over"]
    found = scene.located
    assert (found.fault, found.nodes, found.ranks, found.is_validated) == ("computation", ("node-1",), (1,), True)
    assert 1.9 < found.slowdown < 2.1
    assert (found.held_s, found.asked, found.asked_by) == (0.7, asked.id, "")
    assert any("GEMM on rank 1" in line for line in found.evidence)
    assert [rank.node for rank in found.pace] == ["node-0", "node-1", "node-2"]


def test_a_slow_link_is_named_and_no_node_for_it() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 0.99, 0.99), transfer_s=1.0)
    scene.hold((0.01, 0.01, 0.01), slow_links=((1, 2),))
    assert [wanted.stage for wanted in scene.wanted] == ["profile", "hold", "transfers", "over"]
    hold, tests = scene.wanted[1].tests, scene.wanted[2].tests
    assert hold is not None
    assert tests is not None
    assert (tests.after_step, tests.endpoints[1].port) == (hold.after_step, 1001)
    for links in tests.passes:
        ends = [end for link in links for end in link]
        assert len(ends) == len(set(ends))
    assert {link for links in tests.passes for link in links} >= {(0, 1), (1, 2), (2, 0)}
    found = scene.located
    assert (found.fault, found.nodes, found.links) == ("communication", (), (("node-1", "node-2"),))


def test_getting_slower_again_before_the_tests_that_name_a_machine_holds_training_once() -> None:
    scene = slow_scene(SlowPolicy(answer_s=60))
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    scene.train(4, 4.0)
    assert isinstance(scene.emitted[-1], FailSlowOnset) and scene.emitted[-1] is not scene.emitted[0]
    scene.hold((0.01, 0.05, 0.01))
    assert scene.located.nodes == ("node-1",)
    scene.train(5, 4.0)
    assert [wanted.stage for wanted in scene.wanted] == ["profile", "hold", "over"]


def test_slowness_that_has_passed_before_the_tests_names_no_machine() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    scene.hold((0.01, 0.01, 0.01))
    found = scene.located
    assert (found.fault, found.nodes, found.is_validated, found.suspects) == ("unknown", (), True, ("node-1",))


def test_a_suspect_that_could_not_be_tested_is_not_cleared_by_its_peers() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    # The machine is so slow that the order came too late for its rank.
    scene.hold((0.01, 0.05, 0.01), late=(1,))
    tests = scene.wanted[1].tests
    assert tests is not None
    scene.pass_s((tests.until - scene.now).total_seconds() + 0.1)
    found = scene.located
    assert (found.fault, found.nodes, found.suspects, found.is_validated) == ("computation", (), ("node-1",), False)
    assert found.summary.endswith("not tested: rank 1")


def test_links_that_could_not_be_tested_are_not_cleared() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99), transfer_s=1.0)
    # Without all ranks no transfers are measured.
    scene.hold((0.01, 0.01, 0.01), late=(2,))
    tests = scene.wanted[1].tests
    assert tests is not None and scene.wanted[-1].stage != "transfers"
    scene.pass_s((tests.until - scene.now).total_seconds() + 0.1)
    assert not scene.located.is_validated
    assert "links" in scene.located.summary


def late_once(policy: SlowPolicy) -> Scene:
    """A slow job whose order to hold reached one node too late."""
    scene = slow_scene(policy)
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    scene.hold((0.01, 0.05, 0.01), late=(1,))
    return scene


def test_a_hold_that_came_too_late_for_a_node_is_repeated_with_a_longer_lead() -> None:
    scene = late_once(SlowPolicy(ahead_s=2.0))
    first = scene.wanted[1].tests
    again = scene.wanted[-1]
    assert again.stage == "profile" and not scene.emitted[1:]
    scene.tell((0.99, 1.99, 0.99))
    second = scene.wanted[-1].tests
    assert first is not None and second is not None
    assert second.after_step - scene.iteration >= 5 * (first.after_step - scene.iteration - 1)
    scene.hold((0.01, 0.05, 0.01))
    found = scene.located
    assert (found.nodes, found.is_validated, found.asked) == (("node-1",), True, scene.wanted[0].id)


def test_a_hold_that_left_time_enough_is_not_repeated() -> None:
    assert late_once(SlowPolicy()).located.suspects == ("node-1",)


def test_what_the_first_hold_showed_counts_if_the_repeated_order_is_not_answered() -> None:
    scene = late_once(SlowPolicy(ahead_s=2.0))
    scene.pass_s(60.0)
    assert scene.located.suspects == ("node-1",) and not scene.located.is_validated


@pytest.mark.parametrize("ahead_s", [0.3, 2.0, 5.0])
def test_a_hold_leaves_its_order_time_to_arrive_though_the_present_step_may_end_now(ahead_s: float) -> None:
    scene = slow_scene(SlowPolicy(ahead_s=ahead_s))
    scene.train(2, 2.0)
    pace_s, done = 2.0, scene.iteration
    scene.tell((0.99, 1.99, 0.99))
    tests = scene.wanted[-1].tests
    assert tests is not None
    assert (tests.after_step - done - 1) * pace_s >= ahead_s


def test_without_tests_there_are_only_suspects() -> None:
    scene = slow_scene(SlowPolicy(test=False))
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    found = scene.located
    assert (found.fault, found.nodes, found.suspects, found.is_validated) == ("computation", (), ("node-1",), False)
    assert len(scene.wanted) == 1


def test_nodes_that_do_not_answer_are_not_waited_for() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99), nodes=2)
    scene.pass_s(1.0)
    assert len(scene.emitted) == 1
    scene.pass_s(5.0)
    # Not all are there: nothing is held.
    assert (scene.located.is_validated, len(scene.wanted)) == (False, 1)


def test_nodes_that_do_not_report_measurements_are_not_waited_for() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 1.99, 0.99))
    tests = scene.wanted[-1].tests
    assert tests is not None
    scene.pass_s((tests.until - scene.now).total_seconds() + 0.1)
    assert scene.wanted[-1].is_over
    found = scene.located
    assert (found.is_validated, found.suspects) == (False, ("node-1",))
    assert found.unanswered == ("node-0", "node-1", "node-2")


def test_a_slow_node_answers_slowly_and_silence_is_reported() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.tell((0.99, 0.99), nodes=2)
    scene.pass_s(3.0)
    assert len(scene.emitted) == 1, "a job that is twice as slow waits twice as long"
    scene.pass_s(3.0)
    assert scene.located.summary.endswith("1 of 3 nodes did not report in time: node rank 2")


def test_a_person_may_ask_at_any_time() -> None:
    scene = Scene(SlowPolicy(test=False))
    assert "no agent reports a job job" in scene.ask()
    scene.train(5)
    assert scene.ask(test=True) == ""
    assert "being analyzed now" in scene.ask()
    scene.tell((0.99, 1.2, 0.99))
    scene.hold((0.01, 0.02, 0.01))
    assert (scene.located.nodes, scene.located.asked_by) == (("node-1",), "somebody")
    assert scene.ask() == ""


@pytest.mark.parametrize("reported", [0, 6])
def test_steps_show_the_pace_if_collectives_do_not(reported: int) -> None:
    """DDP calls them from C++; layers and micro-batches repeat as well."""
    scene = Scene(SlowPolicy(locate=False))
    scene.train(50, reported=reported)
    scene.train(3, 2.0, reported=reported)
    assert [type(event) for event in scene.emitted] == [FailSlowOnset]


def test_a_new_generation_resets_the_analysis_and_a_finished_job_is_over() -> None:
    scene = slow_scene()
    scene.train(2, 2.0)
    scene.receive(StepsMeasured(**scene.common(0, generation=2), samples=(), iterations=()))
    scene.tell((0.99, 1.99, 0.99))
    scene.pass_s(10)
    assert not [event for event in scene.emitted if isinstance(event, FailSlowLocated)]
    scene.receive(JobFinished(**scene.common(0), outcome="completed", exit_code=0, reason="done"))
    assert "is over" in scene.ask()


def test_a_job_at_its_pace_has_no_findings() -> None:
    scene = Scene()
    scene.train(200)
    assert not scene.emitted
    assert datetime.fromisoformat(scene.now.isoformat()) > START


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 7},
        {"iterations_s": (1.0,) * 4, "in_calls_s": ()},
        {"iterations_s": (-1.0,) * 4},
        {"runs": ((0, 1 << 53, 1),)},
        {"runs": ((0, 3, 1 << 60),)},
        {"sequences": ()},
        {"nnodes": 1 << 53},
        {"nnodes": NODES + 1},
        {"node_rank": NODES},
        {"mesh": "a mesh that is none"},
    ],
)
def test_an_answer_that_does_not_fit_the_job_is_ignored(changes: dict[str, Any]) -> None:
    scene = Scene()
    scene.train(60)
    asked = scene.ask()
    scene.tell((0.1, 0.1, 0.1), nodes=NODES - 1)
    node = NODES - 1
    calls: dict[str, Any] = {"group": "0", "description": "", "runs": ((0, 3, 1),), "operation": "all_reduce"}
    calls |= {"bytes": 8, "sequences": (1,), "seconds": (0.1,)}
    rank: dict[str, Any] = {"rank": node, "iterations_s": (1.0,) * 4, "in_calls_s": (0.1,) * 4}
    event: dict[str, Any] = {"asked": asked, "node_rank": node, "nnodes": NODES, "nproc_per_node": 1}
    calls, rank, event = (about | {k: v for k, v in changes.items() if k in about} for about in (calls, rank, event))
    event |= {"mesh": changes["mesh"]} if "mesh" in changes else {}
    profile = RankProfile(**rank, calls=(ProfiledCalls(**calls),))
    scene.receive(CollectivesProfiled(**scene.common(node), ranks=(profile,), **event))
    scene.pass_s(10)
    assert len(scene.located.pace) == NODES - 1


def test_measurements_of_other_ranks_are_ignored() -> None:
    scene = Scene()
    scene.train(60)
    scene.ask(test=True)
    scene.tell((0.1, 0.1, 0.1))
    wanted = scene.wanted[-1]
    assert wanted.stage == "hold"
    others: list[tuple[int, dict[str, Any]]] = [(0, {"compute_s": ((0, 0.0),)}), (1, {"compute_s": ((0, 0.1),)})]
    others += [(2, {"transfers": ((2, 99, 0.1),)}), (2, {"node_rank": 1, "compute_s": ((1, 9.0),)})]
    for node, fields in others:
        about: dict[str, Any] = {"asked": wanted.id, "node_rank": node} | fields
        scene.receive(SlownessTested(**scene.common(node), **about))
    # The order may have come too late: it is repeated, and nobody answers that.
    scene.pass_s(1000)
    scene.pass_s(1000)
    assert not scene.located.is_validated and not scene.located.nodes and scene.located.asked == wanted.id
