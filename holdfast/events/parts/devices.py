"""Activity of a node's devices and RDMA ports, and the devices that stand out by having none."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.events.parts.scalars import Count, Name

Measure = Literal["busy", "tensor", "link", "rdma"]
"""A kernel on the device, its tensor cores, its traffic with other GPUs, the RDMA traffic of its node."""


class DeviceActivity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Activity of one GPU over an interval. None: the device or its library does not measure it."""

    device: str
    """PCI address without the function, such as `0000:3b:00`."""
    rank: Count | None = None
    """The rank with a process on it, if there is exactly one and the driver reports it."""
    busy_share: float | None = None
    """Share of the time in which a kernel ran, from 0 to 1. A kernel that only waits for other ranks counts."""
    tensor_share: float | None = None
    """Share of the cycles in which tensor cores worked, from 0 to 1."""
    pcie_bytes_per_s: float | None = None
    """Both directions together."""
    link_sent_bytes_per_s: float | None = None
    """To other GPUs and switches by NVLink, or xGMI on AMD's GPUs."""
    link_received_bytes_per_s: float | None = None


class PortActivity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Traffic of one InfiniBand or RoCE port over an interval. None: its counter was reset, or is full."""

    port: str
    """Card and port, such as `mlx5_0:1`."""
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None


class NodeActivity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Activity of a node's devices and ports now, beside the highest that was measured under the same ranks."""

    devices: tuple[DeviceActivity, ...] = ()
    ports: tuple[PortActivity, ...] = ()
    interval_s: float = 0.0
    peak_devices: tuple[DeviceActivity, ...] = ()
    peak_ports: tuple[PortActivity, ...] = ()


class IdleDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device without an activity that it had before, and that most others of the job have now."""

    node: Name
    measure: Measure
    device: str = ""
    """PCI address; "": the RDMA ports of the node."""
    rank: Count | None = None
    text: str = ""
