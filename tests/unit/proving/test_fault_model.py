"""What scenarios can say about places, classes of machines, inspections and people."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from holdfast.events import JobFinished, NodeReleaseRequested
from holdfast.settings.inspections import CHECKS
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import ScenarioRefused, load_scenario, read_scenario
from holdfast_proving.truth.generator import racks_of, true_faults

TWO_CLASSES = """
title = "Two generations"
days = 400

[[machines]]
name = "old"
count = 12
per_rack = 4
per_switch = 6
per_feed = 12
ranks_max = 4

[[machines]]
name = "new"
count = 12

[[jobs]]
name = "train"
nodes = 8
ranks_per_node = 8

[[faults]]
name = "congestion"
effect = "slow"
place = "switch"
per_day = 0.1
lasts = "while"

[[faults]]
name = "dead"
effect = "crash"
prints = "ecc"
per_day = 0.05
rates = { old = 0.2 }
"""


def test_a_switch_is_no_rack() -> None:
    where = racks_of(read_scenario(TWO_CLASSES))
    assert list(where.switches) == ["old-switch-0", "old-switch-1"] and list(where.feeds) == ["old-power-0"]
    assert where.switches["old-switch-0"] == tuple(f"old-{number}" for number in range(6))
    faults = [fault for fault in true_faults(read_scenario(TWO_CLASSES), 1) if fault.kind.name == "congestion"]
    assert {fault.place for fault in faults} == set(where.switches)
    assert all(fault.machines == where.switches[fault.place] and fault.culprit is None for fault in faults)


def test_a_class_has_a_rate_of_its_own() -> None:
    faults = [fault for fault in true_faults(read_scenario(TWO_CLASSES), 1) if fault.kind.name == "dead"]
    of_class = Counter(fault.place.partition("-")[0] for fault in faults)
    # 960 and 240 are expected, with standard deviations of 31 and 15.
    assert 850 < of_class["old"] < 1070 and 180 < of_class["new"] < 300


def test_smaller_nodes_fail_jobs_that_ask_for_more() -> None:
    faults = [fault for fault in true_faults(read_scenario(TWO_CLASSES), 1) if fault.kind.name == "too_few_gpus"]
    assert {fault.place for fault in faults} == {f"old-{number}" for number in range(12)}
    assert all(fault.kind.over_ranks == 4 for fault in faults)


def test_alerts_are_those_of_inspections() -> None:
    alert = '[[faults]]\nname = "x"\neffect = "alert"\nalert = {{ confidence = "hint", check = "{}", symptom = "" }}\n'
    for check in CHECKS:
        assert read_scenario(TWO_CLASSES + alert.format(check)).faults[-1].alert is not None
    with pytest.raises(ScenarioRefused, match="there is no check 'gateway'"):
        read_scenario(TWO_CLASSES + alert.format("gateway"))


def test_every_inspection_has_a_false_alarm() -> None:
    kinds = load_scenario("false-alarms").faults
    assert {kind.alert.check for kind in kinds if kind.alert is not None and kind.is_false} == set(CHECKS)


def test_people_make_mistakes() -> None:
    """A job that is larger than the cluster waits until it is stopped, and no other job waits for that."""
    cluster = Cluster(msgspec.structs.replace(load_scenario("stranger"), days=0.5), 1).run()
    ended = {event.job: event.outcome for _, event in cluster.log if isinstance(event, JobFinished)}
    assert ended["typo-1"] == "stopped" and "typo-2" not in cluster.controller.decider.jobs  # type: ignore[attr-defined]
    pair = next(training for training in cluster.trainings if training.plan.name == "pair")
    assert pair.book.spent_s["productive"] > 0.9 * pair.book.total_s
    released = [event.node for _, event in cluster.log if isinstance(event, NodeReleaseRequested)]
    assert released == ["new-1"]
