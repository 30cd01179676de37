"""Spare machines are repaired as well: one that fails its self-check is no standby, and nobody evicts it."""

from __future__ import annotations

import msgspec

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import read_scenario
from tests.scenes.small_scenario import SMALL

ILL = """
[repairs]
median_h = 2.0
sigma = 0.1
[[faults]]
name = "ill"
effect = "alert"
lasts = "repair"
alert = { confidence = "evict", check = "gpu", symptom = "gpu_memory_error" }
[[strikes]]
kind = "ill"
at_h = 1
place = "gpu-7"
"""


def test_a_spare_machine_that_fails_its_self_check_is_repaired() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + ILL), days=0.25)
    cluster = Cluster(scenario, 1).run()
    (record,) = cluster.ledger.records.values()
    assert record.end == "repaired" and record.ended_s is not None
    assert 1.5 < (record.ended_s - record.began_s) / 3600.0 < 3.0
