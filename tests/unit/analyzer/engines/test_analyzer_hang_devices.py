"""Devices in the finding of a hang: by what nodes measure while they are traced."""

from __future__ import annotations

from holdfast.events import HangFound, JobTraced
from holdfast.events.parts.devices import DeviceActivity, NodeActivity
from tests.scenes.hang import NODES, WAITS, Scene, hanging, train

IDLE_IN_A_COLLECTIVE = "GPU 0000:3b:00 of rank 2 on c runs no kernel, while 3 of 3 others of the job do"


def measured(rank: int, busy_share: float | None) -> NodeActivity:
    device = DeviceActivity(device="0000:3b:00", rank=rank, busy_share=busy_share)
    return NodeActivity(devices=(device,), peak_devices=(DeviceActivity(device="0000:3b:00", busy_share=1.0),))


def activity(of_third: float | None, others: float | None = 1.0) -> dict[str, NodeActivity]:
    return {node: measured(rank, of_third if node == "c" else others) for rank, node in enumerate(NODES)}


def found(scene: Scene) -> HangFound:
    (finding,) = scene.of(HangFound)
    return finding


def test_all_wait_in_a_collective_and_one_device_has_not_begun_it() -> None:
    scene = hanging()
    scene.answer(guilty=None, activity=activity(0.0))
    for _ in range(40):
        scene.second()
    finding = found(scene)
    assert [(idle.node, idle.measure, idle.text) for idle in finding.idle] == [("c", "busy", IDLE_IN_A_COLLECTIVE)]
    assert finding.nodes == (), "it is no proof"
    (traced, *_) = scene.of(JobTraced)
    assert IDLE_IN_A_COLLECTIVE in traced.evidence


def test_a_rank_that_waits_on_its_host_explains_its_device() -> None:
    scene = hanging()
    scene.answer(activity=activity(0.0))
    finding = found(scene)
    assert finding.ranks == (2,) and finding.idle == ()


def test_without_measurements_or_with_all_devices_alike_there_is_nothing() -> None:
    for measures in (activity(None, None), activity(1.0), activity(0.0, 0.0), {}):
        scene = hanging()
        scene.answer(guilty=None, activity=measures)
        for _ in range(40):
            scene.second()
        assert found(scene).idle == ()


def test_in_a_checkpoint_the_others_wait_for_one_that_writes() -> None:
    scene = Scene()
    train(scene)
    scene.until_asked(phase="checkpoint")
    scene.answer(guilty=None, others=WAITS, activity=activity(0.0))
    for _ in range(40):
        scene.second(phase="checkpoint")
    assert all(not finding.idle for finding in scene.of(HangFound)) and scene.of(JobTraced)
