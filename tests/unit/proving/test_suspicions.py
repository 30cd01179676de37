"""What the judges make of machines that were accused, had nothing, and came back."""

from __future__ import annotations

import pytest

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.complaints import Wrong
from holdfast_proving.judging.history import History
from holdfast_proving.judging.judges import judge
from holdfast_proving.judging.suspicions import cleared
from holdfast_proving.policies.named import policy_of
from holdfast_proving.scenario.load import read_scenario

STUCK = """
title = "small"
days = 0.3
jobs = [{{ name = "train", nodes = 4 }}]
machines = [{{ name = "gpu", count = {machines} }}]
[[faults]]
name = "stuck_for_a_moment"
effect = "hang"
naming = {{ machine = 1.0, group = 0.0, is_certain = 1.0 }}
"""
STRIKE = """
[[strikes]]
kind = "stuck_for_a_moment"
at_h = {at_h}
place = "gpu-{machine}"
"""


def judged(policy: str, *stuck: tuple[float, int], machines: int = 8) -> tuple[list[Wrong], int, float]:
    """Return the complaints, the evictions that tests took back, and the time that the job waited for machines."""
    strikes = (STRIKE.format(at_h=at_h, machine=machine) for at_h, machine in stuck)
    scenario = read_scenario(STUCK.format(machines=machines) + "".join(strikes))
    cluster = Cluster(scenario, 1, policy_of(policy)).run()
    waited_s = cluster.trainings[0].book.spent_s["waiting_for_machines"]
    return [it.wrong for it in judge(cluster)], cleared(History(cluster)), waited_s


def test_a_machine_that_was_tested_and_came_back_was_no_wrong_eviction() -> None:
    assert judged("today", (1, 1)) == ([], 1, pytest.approx(0.0, abs=1.0))


def test_to_come_back_untested_is_no_excuse() -> None:
    assert judged("takes_back_untested", (1, 1))[:2] == ([Wrong.INNOCENT_EVICTED], 0)


def test_a_job_has_one_excuse_a_day() -> None:
    assert judged("exchanges_without_end", (1, 1), (3, 2))[:2] == ([Wrong.INNOCENT_EVICTED], 1)
    assert judged("today", (1, 1), (3, 2)) == ([], 1, pytest.approx(0.0, abs=1.0))


@pytest.mark.parametrize(("machines", "wrong"), [(4, Wrong.INNOCENT_EVICTED), (5, Wrong.INNOCENT_KEPT_OUT)])
def test_none_leaves_that_nothing_can_replace_or_test(machines: int, wrong: Wrong) -> None:
    complaints, came_back, _ = judged("leaves_unreplaced", (1, 1), machines=machines)
    assert wrong in complaints and came_back == 0
    assert judged("today", (1, 1), machines=machines) == ([], 0, pytest.approx(0.0, abs=1.0))
