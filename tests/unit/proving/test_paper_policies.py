"""The papers' ladders: each answers a machine that fails again and again as its paper has it, under the same faults."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.events import ChecksStarted, Eviction, GenerationStarted, JobFinished, NodesRequested, Reattempt
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.history import History
from holdfast_proving.policies.papers import (
    BYTEROBUST,
    CHECKED_REQUEUE,
    MAX_RESTARTS,
    PAPERS,
    REQUEUE,
    TORCHRUN,
    TRANSOM,
)
from holdfast_proving.policies.policy import Policy
from holdfast_proving.scenario.load import load_scenario, read_scenario
from holdfast_proving.truth.generator import true_faults
from tests.scenes.small_scenario import SMALL

LEMON = """
[[faults]]
name = "lemon"
effect = "crash"
prints = "ecc"
lasts = "repair"
again_h = 1.0
found_by_checks = 1.0
[[strikes]]
kind = "lemon"
at_h = 1
place = "gpu-1"
"""
GROUP = """
[[faults]]
name = "stall"
effect = "hang"
lasts = "repair"
again_h = 0.0
found_by_checks = 0.0
naming = { machine = 0.0, group = 1.0, group_size = 2 }
[[strikes]]
kind = "stall"
at_h = 1
place = "gpu-1"
"""


def history(policy: Policy, faults: str = LEMON, days: float = 0.5) -> History:
    scenario = msgspec.structs.replace(read_scenario(SMALL + faults), days=days)
    return History(Cluster(scenario, 1, policy).run())


def started_s(of: History) -> float:
    return max(end.until_s - end.since_s for end in of.cluster.trainings[0].book.stretches if end.cause == "starting")


@pytest.mark.parametrize("policy", PAPERS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("name", ["llama3", "byterobust-fleet"])
def test_all_meet_the_same_faults(policy: Policy, name: str) -> None:
    scenario = load_scenario(name)
    ours, theirs = true_faults(scenario, 1), true_faults(policy.conditions(scenario), 1)
    assert ours and [(it.place, it.since_s, it.lasts_s) for it in ours] == [
        (it.place, it.since_s, it.lasts_s) for it in theirs
    ]


def test_byterobust_checks_at_the_first_failure() -> None:
    seen = history(BYTEROBUST)
    assert not any(seen.of(Reattempt))
    assert len(seen.of(ChecksStarted)) == 1
    assert [event.node for _, event in seen.of(Eviction)] == ["gpu-1"]


def test_byterobust_evicts_a_group_at_the_first_hang() -> None:
    seen = history(BYTEROBUST, GROUP)
    assert [event.node for _, event in seen.of(Eviction)] == ["gpu-0", "gpu-1"]
    assert len(seen.of(GenerationStarted)) == 2


def test_transom_checks_at_each_failure_and_restarts_for_minutes() -> None:
    seen = history(TRANSOM, LEMON.replace("found_by_checks = 1.0", "found_by_checks = 0.0"))
    checks = len(seen.of(ChecksStarted))
    assert checks == len(seen.of(Reattempt)) > 2 and not seen.evictions
    assert 599.0 < started_s(seen) < 605.0


def test_a_requeue_asks_for_all_machines_and_checks_none() -> None:
    seen = history(REQUEUE)
    assert not any(seen.of(ChecksStarted)) and not seen.evictions
    assert {event.count for _, event in seen.of(NodesRequested)} == {4}
    assert len(seen.of(NodesRequested)) > 2
    assert 453.0 < started_s(seen) < 460.0


def test_a_checked_requeue_evicts_who_fails_the_checks() -> None:
    seen = history(CHECKED_REQUEUE)
    assert [event.node for _, event in seen.of(Eviction)] == ["gpu-1"]


def test_torchrun_ends_a_job_after_its_restarts() -> None:
    seen = history(TORCHRUN)
    first = seen.of(JobFinished)[0][1]
    assert first.outcome == "failed" and not seen.evictions
    assert len([it for _, it in seen.of(GenerationStarted) if it.job == first.job]) == 1 + MAX_RESTARTS
