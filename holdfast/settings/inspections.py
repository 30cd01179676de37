"""Section `[inspections]`: intervals and limits of the checks of nodes, and users' checks."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import msgspec

from holdfast.pci import pci_address
from holdfast.settings import Section, Within

Confidence = Literal["evict", "tolerate", "hint"]

_HOUR_S = 3600.0
Interval = Annotated[float, Within(0.1, _HOUR_S)]

CHECKS = (
    "network",
    "infiniband",
    "switch",
    "gpu",
    "dcgm",
    "kernel",
    "disks",
    "mounts",
    "pressure",
    "clock",
    "container",
)
"""Names of the built-in checks."""

PLUGIN = "plugin:"
"""Prefix of the name of a package's check in `disabled`."""


class CommandCheck(Section, frozen=True, kw_only=True):
    """A user's check: an executable with Nagios exit codes and optional JSON on stdout."""

    command: str
    """The program and its arguments, split like in a shell; no shell runs."""

    interval_s: Interval = 60.0
    """Time between two starts."""

    limit_s: Annotated[float, Within(0.01, _HOUR_S)] = 10.0
    """Time after which it is killed and counts as broken."""

    confidence: Confidence = "hint"
    """Confidence of exit code 2 (critical); 1 (warning) is a hint."""

    symptom: str = ""
    """Name of what its alerts show, such as `gpu_unavailable`; "": an unknown fault."""

    misses: Annotated[int, Within(1, 1000)] = 1
    """Readings in a row until it is an alert."""

    scope: Literal["node", "host"] = "node"
    """The part at fault: this node, or its machine (`host`), so that all nodes on the machine fail together."""

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command {self.command!r} cannot be split into words: {error}") from error
        if not words:
            raise ValueError("command names no program")
        super().__post_init__()


class InspectionPolicy(Section, frozen=True, kw_only=True):
    """Inspections beside training (ByteRobust §4.1); intervals and tolerances are those of its Table 3 by default."""

    disabled: str = ""
    """Names of checks that do not run, separated by commas: "clock, container, plugin:mine"; "all": none runs."""

    gpus: str = ""
    """PCI addresses of this node's GPUs, separated by commas; "": all of the machine."""

    interfaces: str = ""
    """Network interfaces and InfiniBand devices that this node needs, separated by commas; "": those that it finds."""

    switches: str = ""
    """Addresses that are asked and must answer, separated by commas; "": none is asked, and the kernel's neighbour
    table shows whether the node's own traffic finds its default gateway."""

    mounts: str = ""
    """Mount points that must be present and answer, separated by commas, beside the network file systems that are
    found."""

    network_s: Interval = 30.0
    """Interval of the checks of network and InfiniBand ports."""

    switch_s: Interval = 30.0
    """Interval of the check of the default gateway and of `switches`."""

    switch_misses: Annotated[int, Within(1, 1000)] = 2
    """Readings in a row without an answer until it is an alert."""

    gpu_s: Interval = 10.0
    """Interval of the check of GPUs."""

    gpu_hang_s: Interval = 10.0
    """A driver that does not answer for this long hangs."""

    dcgm_s: Interval = 60.0
    """Interval of DCGM's health checks, where it is installed."""

    kernel_s: Interval = 2.0
    """Upper limit; lines are read when they are written."""

    disks_s: Interval = 30.0
    """Interval of the check of disks: space, file systems that became read-only, disks that are offline."""

    mounts_s: Interval = 15.0
    """Interval of the check of file systems that can hang or vanish."""

    mount_hang_s: Interval = 10.0
    """A file system that does not answer for this long hangs."""

    pressure_s: Interval = 15.0
    """Interval of the check of processors and memory: shortage, OOM kills, foreign processes."""

    clock_s: Interval = 60.0
    """Interval of the check of the clock."""

    container_s: Interval = 30.0
    """Interval of the check of the container runtime."""

    again_s: Annotated[float, Within(1, 24 * _HOUR_S)] = 300.0
    """Interval at which a lasting alert that names its node without doubt is repeated."""

    error_ratio_max: Annotated[float, Within(0, 1)] = 0.001
    """Share of an interface's packets since the last reading that may have errors."""

    drop_ratio_max: Annotated[float, Within(0, 1)] = 0.01
    """Share of an interface's packets that may be dropped."""

    link_errors_per_min_max: Annotated[float, Within(0, 1e9)] = 10.0
    """Symbol and other link errors of an InfiniBand port per minute."""

    rdma_silent_s: Annotated[float, Within(1, 30 * 86400)] = 600.0
    """A node whose ranks have moved data by RDMA is a hint once none has moved for this long (ByteRobust §4.1)."""

    gpu_temperature_c_max: Annotated[float, Within(30, 150)] = 85.0
    """A GPU above this temperature is a hint, like one that its driver slows down for heat."""

    pcie_replays_per_min_max: Annotated[float, Within(0, 1e9)] = 100.0
    """Packets per minute that a GPU's PCIe link had to repeat."""

    disk_free_bytes_min: Annotated[int, Within(0, 1 << 53)] = 256 * 1024 * 1024
    """Less free space where the agent or a job writes is an alert."""

    disk_free_percent_min: Annotated[float, Within(0, 100)] = 2.0
    """Less free space or inodes is a hint."""

    cpu_pressure_percent_max: Annotated[float, Within(0, 100)] = 80.0
    """Share of the last minute in which some process waited for a processor."""

    memory_pressure_percent_max: Annotated[float, Within(0, 100)] = 20.0
    """Share of the last minute in which every process waited for memory."""

    clock_skew_s_max: Annotated[float, Within(1e-6, _HOUR_S)] = 0.5
    """Largest offset of the clock, as the time service reports it."""

    commands: dict[str, CommandCheck] = msgspec.field(default_factory=dict)
    """Checks of your own, by name: tables `[inspections.commands.NAME]`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for address in listed(self.gpus):
            pci_address(address)
        for name in self.commands:
            if name in CHECKS:
                raise ValueError(f"commands.{name} has the name of a built-in check: choose another")
        unknown = self.names_disabled - {*CHECKS, *self.commands, "all"}
        # The checks of packages are not known here.
        if unknown_names := sorted(name for name in unknown if not name.startswith(PLUGIN)):
            raise ValueError(
                f"disabled names {', '.join(unknown_names)}, which is not a check: there are {', '.join(CHECKS)}"
            )

    @property
    def names_disabled(self) -> frozenset[str]:
        """Names of checks that do not run."""
        return frozenset(listed(self.disabled))


def listed(text: str) -> tuple[str, ...]:
    """Return the parts between commas."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)
