"""Reports of a library about devices at one moment, and their activity between two such readings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from holdfast.events.parts.devices import DeviceActivity, PortActivity

RATES = ("busy_share", "tensor_share", "pcie_bytes_per_s", "link_sent_bytes_per_s", "link_received_bytes_per_s")
"""Fields of `DeviceActivity` that are measured."""

PORT_RATES = ("sent_bytes_per_s", "received_bytes_per_s")

FULL = (1 << 32) - 1
"""A 32-bit counter of a port stays at this value once it is full; it counts no further."""


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device. `rates` are the library's own; `counters` count since some time, in bytes; both by field."""

    device: str
    pids: tuple[int, ...] = ()
    rates: dict[str, float] = {}
    counters: dict[str, int] = {}


class MeterReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All devices that a library reports. `failed`: what is missing, with the reason in `why`."""

    devices: tuple[DeviceReading, ...] = ()
    failed: Literal["", "library", "driver"] = ""
    why: str = ""


def growth(before: int | None, now: int | None, passed_s: float) -> float | None:
    """Return the growth per second. A counter that is lower than before was reset: what it counted is not known."""
    if before is None or now is None or now < before or passed_s <= 0:
        return None
    return (now - before) / passed_s


def activity_of(reading: DeviceReading, before: DeviceReading | None, passed_s: float) -> DeviceActivity:
    """Return the activity of a device since the reading before. The library's own rate is taken where there is one."""
    known = before.counters if before is not None else {}
    counted = {name: growth(known.get(name), value, passed_s) for name, value in reading.counters.items()}
    rates: dict[str, Any] = {name: _rounded(name, rate) for name, rate in {**counted, **reading.rates}.items()}
    return DeviceActivity(device=reading.device, **rates)


def together(first: DeviceActivity, more: DeviceActivity) -> DeviceActivity:
    """Return the first reading, completed by what another source has."""
    lacking = {name: getattr(more, name) for name in RATES if getattr(first, name) is None}
    return msgspec.structs.replace(first, **lacking)


def of_rank(activity: DeviceActivity, pids: Iterable[int], rank_of: Mapping[int, int]) -> DeviceActivity:
    """Return the activity with its rank, if the processes on the device are of exactly one."""
    ranks = {rank_of[pid] for pid in pids if pid in rank_of}
    return msgspec.structs.replace(activity, rank=ranks.pop()) if len(ranks) == 1 else activity


def port_activity(name: str, before: Mapping[str, int], now: Mapping[str, int], passed_s: float) -> PortActivity:
    """Return the traffic of a port between two readings of its counters, which are in bytes."""
    rates = {rate: _rounded(rate, growth(before.get(rate), now.get(rate), passed_s)) for rate in PORT_RATES}
    return PortActivity(port=name, **rates)


def peak_of(peak: DeviceActivity | None, now: DeviceActivity) -> DeviceActivity:
    """Return the highest of each rate so far."""
    rates = {name: _higher(getattr(peak, name, None), getattr(now, name)) for name in RATES}
    return msgspec.structs.replace(now, **rates)


def port_peak_of(peak: PortActivity | None, now: PortActivity) -> PortActivity:
    rates = {name: _higher(getattr(peak, name, None), getattr(now, name)) for name in PORT_RATES}
    return msgspec.structs.replace(now, **rates)


def lacks(activities: Collection[DeviceActivity], name: str) -> bool:
    """Return True if some device has no such rate."""
    return any(getattr(activity, name) is None for activity in activities)


def _rounded(name: str, rate: float | None) -> float | None:
    """Return a share to five digits, and bytes without a fraction: events of all nodes carry them every few seconds."""
    return None if rate is None else round(rate, 5 if name.endswith("_share") else 0)


def _higher(first: float | None, second: float | None) -> float | None:
    known = [value for value in (first, second) if value is not None]
    return max(known) if known else None
