"""Checkpoints in the simulated world: they are where vaults have them, and go with the machines that had them."""

from __future__ import annotations

from holdfast.events import Eviction, ReplayEnded, StepsLost
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import read_scenario
from holdfast_proving.world.checkpoints import Restore
from tests.scenes.small_scenario import SMALL

LOST = '[[faults]]\nname = "power"\neffect = "lost"\nlasts = "repair"\n'
WRONG = """
[[faults]]
name = "wrong"
effect = "bad_numbers"
lasts = "repair"
again_h = 0.0
found_by_checks = 0.0
found_by_replay = 1.0
"""


def strike(kind: str, *places: str) -> str:
    return "".join(f'[[strikes]]\nkind = "{kind}"\nat_h = 1.9\nplace = "{place}"\n' for place in places)


def run(faults: str) -> Cluster:
    return Cluster(read_scenario(SMALL + faults), 1).run(0.15)


def last_restore(cluster: Cluster) -> Restore:
    (training,) = cluster.trainings
    return training.checkpoints.restores[-1]


def test_a_lost_machine_comes_back_from_its_keeper() -> None:
    restore = last_restore(run(LOST + strike("power", "gpu-0")))
    assert restore.lost == ("gpu-0",)
    assert restore.tier == "memory" and restore.step >= restore.made - 2


def test_a_machine_lost_with_its_keeper_goes_back_to_the_disk() -> None:
    """The keepers of four nodes are their neighbours; of two neighbours one keeps the other's copies."""
    cluster = run(LOST + strike("power", "gpu-0", "gpu-1"))
    restore = last_restore(cluster)
    assert set(restore.lost) == {"gpu-0", "gpu-1"}
    assert restore.tier == "disk" and restore.step == restore.whole < restore.made - 2
    assert any(isinstance(event, StepsLost) for _, event in cluster.log)


def test_before_bad_numbers_a_certified_step_is_in_memory() -> None:
    """A machine that checks do not find is named by a replay, and leaves."""
    cluster = run(WRONG + strike("wrong", "gpu-2"))
    (training,) = cluster.trainings
    first = next(it for it in training.checkpoints.restores if it.at_most is not None)
    assert first.tier == "memory" and first.at_most is not None and first.step <= first.at_most < first.made
    assert [event.suspects for _, event in cluster.log if isinstance(event, ReplayEnded)] == [("gpu-2",)]
    assert [event.node for _, event in cluster.log if isinstance(event, Eviction)] == ["gpu-2"]
