"""Devices that stand out by what they do not do while a job makes no progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.engines.hang.idle_devices import idle_devices
from holdfast.events.parts.devices import DeviceActivity, NodeActivity, PortActivity

NODE_OF_RANK = dict(enumerate("abcd"))
BUSY: dict[str, Any] = {
    "busy_share": 1.0,
    "tensor_share": 0.4,
    "link_sent_bytes_per_s": 1e9,
    "link_received_bytes_per_s": 1e9,
}


def node(rank: int | None, now: Mapping[str, Any], peak: Mapping[str, Any] = BUSY, rdma: Any = None) -> NodeActivity:
    device = "0000:3b:00"
    ports = () if rdma is None else (PortActivity(port="mlx5_0:1", sent_bytes_per_s=rdma, received_bytes_per_s=rdma),)
    peak_ports = (PortActivity(port="mlx5_0:1", sent_bytes_per_s=1e9, received_bytes_per_s=1e9),)
    return NodeActivity(
        devices=(DeviceActivity(device=device, rank=rank, **now),),
        peak_devices=(DeviceActivity(device=device, **peak),),
        ports=ports,
        peak_ports=peak_ports,
    )


def job(third: NodeActivity | None, others: Mapping[str, Any] = BUSY, rdma: Any = None) -> dict[str, NodeActivity]:
    found = {name: node(rank, others, rdma=rdma) for rank, name in NODE_OF_RANK.items() if name != "c"}
    return found | ({"c": third} if third is not None else {})


def named(activity: Mapping[str, NodeActivity], busy_on_host: frozenset[int] = frozenset()) -> list[tuple[str, str]]:
    return [(idle.node, idle.measure) for idle in idle_devices(activity, busy_on_host, NODE_OF_RANK)]


@pytest.mark.parametrize(
    ("rates", "measure"),
    [
        ({"busy_share": 0.0}, "busy"),
        ({"tensor_share": 0.0}, "tensor"),
        ({"link_sent_bytes_per_s": 0.0, "link_received_bytes_per_s": 500.0}, "link"),
    ],
)
def test_a_device_without_what_its_peers_have_stands_out(rates: dict[str, float], measure: str) -> None:
    assert named(job(node(2, BUSY | rates))) == [("c", measure)]


def test_it_is_described_with_its_rank_and_its_peers() -> None:
    (idle,) = idle_devices(job(node(2, BUSY | {"busy_share": 0.0})), frozenset(), NODE_OF_RANK)
    assert (idle.device, idle.rank) == ("0000:3b:00", 2)
    assert idle.text == "GPU 0000:3b:00 of rank 2 on c runs no kernel, while 3 of 3 others of the job do"


def test_rdma_is_the_nodes() -> None:
    activity = job(node(2, BUSY, rdma=0.0), rdma=1e8)
    (idle,) = idle_devices(activity, frozenset(), NODE_OF_RANK)
    assert (idle.node, idle.measure, idle.device) == ("c", "rdma", "")
    assert idle.text == "c moves no data by RDMA, while 3 of 3 others of the job do"


@pytest.mark.parametrize(
    "third",
    [
        # Nothing is known: no library, a value that it lacks, traffic in one direction only.
        None,
        NodeActivity(),
        node(2, {}),
        node(2, {"link_sent_bytes_per_s": 0.0}),
        # It never did that under these ranks, as a GPU that no rank uses, or nothing was measured before.
        node(2, dict.fromkeys(BUSY, 0.0), peak=dict.fromkeys(BUSY, 0.0)),
        node(2, dict.fromkeys(BUSY, 0.0), peak={}),
        # A little is not nothing.
        node(2, {"busy_share": 0.05, "tensor_share": 0.001, "link_sent_bytes_per_s": 1e5}),
    ],
)
def test_silence_shows_nothing(third: NodeActivity | None) -> None:
    assert named(job(third)) == []


def test_what_most_lack_is_no_devices_fault() -> None:
    idle = node(2, BUSY | {"tensor_share": 0.0})
    # In a collective all of them wait: no tensor core works, and no data moves.
    assert named(job(idle, BUSY | {"tensor_share": 0.0})) == []
    half = job(idle) | {"d": node(3, BUSY | {"tensor_share": 0.0})}
    assert named(half) == []
    assert named({"a": node(0, BUSY), "c": idle}) == [], "of two, none is most"


def test_a_device_is_compared_with_those_of_other_nodes() -> None:
    # On the only node that is measured, the second of three GPUs is idle: no other node's device does better.
    devices = [
        DeviceActivity(device=name, **(BUSY | {"busy_share": share})) for name, share in (("x", 1), ("y", 0), ("z", 1))
    ]
    peaks = tuple(DeviceActivity(device=name, **BUSY) for name in "xyz")
    assert named({"a": NodeActivity(devices=tuple(devices), peak_devices=peaks)}) == []


def test_a_rank_that_is_busy_on_its_host_explains_its_device() -> None:
    idle = BUSY | {"busy_share": 0.0}
    assert named(job(node(2, idle)), frozenset({2})) == []
    assert named(job(node(2, idle)), frozenset({1})) == [("c", "busy")]
    # Where the driver does not tell whose device it is, any rank of its node may be.
    assert named(job(node(None, idle)), frozenset({2})) == []
