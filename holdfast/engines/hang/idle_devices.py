"""Devices without an activity that most others of the job have while it makes no progress. Pure.

While one rank holds a job up, the devices of all others are busy with a kernel that waits for it, or still move data.
A device without any is where to look first (ByteRobust §4.1, TRANSOM §III). It is no proof: a rank that is busy on its
host starts nothing on its device either, and its stack shows that. What is not measured shows nothing, nor does what a
device never did under these ranks, nor what most devices lack at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from holdfast.events.parts.devices import DeviceActivity, IdleDevice, Measure, NodeActivity, PortActivity

SHOWN_MAX: Final = 16


class Limits(NamedTuple):
    """A device is idle up to `idle`, and active from `active`; between them nothing is concluded."""

    idle: float
    active: float


LIMITS: Final[Mapping[Measure, Limits]] = {
    "busy": Limits(0.01, 0.1),
    "tensor": Limits(0.0005, 0.005),
    "link": Limits(10e3, 1e6),
    "rdma": Limits(10e3, 1e6),
}
"""Shares from 0 to 1, and bytes per second: management and heartbeats are far below a megabyte."""

_WORDS: Final[Mapping[Measure, str]] = {
    "busy": "runs no kernel",
    "tensor": "does not use its tensor cores",
    "link": "moves no data to other GPUs or from them",
    "rdma": "moves no data by RDMA",
}


class _Unit(NamedTuple):
    """A device of a node, or its RDMA ports ("")."""

    node: str
    device: str
    rank: int | None
    value: float
    peak: float


def idle_devices(
    activity: Mapping[str, NodeActivity], busy_on_host: Collection[int], node_of_rank: Mapping[int, str]
) -> tuple[IdleDevice, ...]:
    """Return the devices that stand out. `busy_on_host`: ranks whose own work explains that their device has none."""
    explained = {node_of_rank[rank] for rank in busy_on_host if rank in node_of_rank}
    found: list[IdleDevice] = []
    for measure, limits in LIMITS.items():
        used = [unit for unit in _units(activity, measure) if unit.peak >= limits.active]
        active = [unit for unit in used if unit.value >= limits.active]
        idle = [unit for unit in used if unit.value <= limits.idle]
        others = {unit.node for unit in active} - {unit.node for unit in idle}
        if 2 * len(active) <= len(used) or not others:
            continue
        found += [
            IdleDevice(
                node=unit.node,
                measure=measure,
                device=unit.device,
                rank=unit.rank,
                text=_in_words(unit, measure, len(active), len(used) - 1),
            )
            for unit in idle
            if not (unit.rank in busy_on_host if unit.rank is not None else unit.node in explained)
        ]
    return tuple(found[:SHOWN_MAX])


def _units(activity: Mapping[str, NodeActivity], measure: Measure) -> Iterable[_Unit]:
    for node, measured in activity.items():
        if measure == "rdma":
            value, peak = _rdma(measured.ports), _rdma(measured.peak_ports)
            if value is not None and peak is not None:
                yield _Unit(node, "", None, value, peak)
            continue
        peaks = {peak.device: peak for peak in measured.peak_devices}
        for device in measured.devices:
            value = _value(device, measure)
            peak = _value(peaks[device.device], measure) if device.device in peaks else None
            if value is not None and peak is not None:
                yield _Unit(node, device.device, device.rank, value, peak)


def _value(device: DeviceActivity, measure: Measure) -> float | None:
    if measure == "busy":
        return device.busy_share
    if measure == "tensor":
        return device.tensor_share
    return _sum((device.link_sent_bytes_per_s, device.link_received_bytes_per_s))


def _rdma(ports: Collection[PortActivity]) -> float | None:
    rates = [rate for port in ports for rate in (port.sent_bytes_per_s, port.received_bytes_per_s)]
    return _sum(rates) if rates else None


def _sum(rates: Iterable[float | None]) -> float | None:
    """Return None if a part is not known: the whole is not then."""
    total = 0.0
    for rate in rates:
        if rate is None:
            return None
        total += rate
    return total


def _in_words(unit: _Unit, measure: Measure, active: int, others: int) -> str:
    of_rank = f" of rank {unit.rank}" if unit.rank is not None else ""
    subject = f"GPU {unit.device}{of_rank} on {unit.node}" if unit.device else unit.node
    return f"{subject} {_WORDS[measure]}, while {active} of {others} others of the job do"
