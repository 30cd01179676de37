"""What can be set of the inspections of nodes: how often each looks, what it takes for trouble, checks of one's own."""

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
"""The checks that every agent has, by name; those that users add have names of their own."""

PLUGIN = "plugin:"
"""Before the name of a check that a package offers, where it is disabled."""


class CommandCheck(Section, frozen=True, kw_only=True):
    """A check that is an executable, `[inspections.commands.NAME]`: Nagios exit codes, JSON on stdout if it likes."""

    command: str
    """The program and its arguments, as a shell would split them; no shell runs."""

    interval_s: Interval = 60.0
    limit_s: Annotated[float, Within(0.01, _HOUR_S)] = 10.0
    """It is killed after so long, and then counts as broken."""

    confidence: Confidence = "hint"
    """What exit code 2 (critical) asks for; 1 (warning) is a hint."""

    symptom: str = ""
    misses: Annotated[int, Within(1, 1000)] = 1
    """So many readings in a row until it is an alert."""

    scope: Literal["node", "host"] = "node"

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command {self.command!r} cannot be split into words: {error}") from error
        if not words:
            raise ValueError("command names no program")
        super().__post_init__()


class InspectionPolicy(Section, frozen=True, kw_only=True):
    """Inspections beside training (ByteRobust §4.1); intervals and tolerances default to its Table 3."""

    disabled: str = ""
    """Checks that do not run, by name, with commas: "clock, container, plugin:mine"; "all": none runs."""

    gpus: str = ""
    """PCI addresses of the GPUs that are this node's, with commas; "": all of the machine."""

    interfaces: str = ""
    """Network interfaces and InfiniBand devices that this node needs, with commas; "": those it finds."""

    switches: str = ""
    """Addresses that must answer, with commas; "": the default gateway."""

    mounts: str = ""
    """Mount points that must be there and answer, with commas, besides the network file systems that are found."""

    network_s: Interval = 30.0
    switch_s: Interval = 30.0
    switch_misses: Annotated[int, Within(1, 1000)] = 2
    """Readings in a row without an answer until it is an alert."""

    gpu_s: Interval = 10.0
    gpu_hang_s: Interval = 10.0
    """A driver that does not answer for so long hangs."""

    dcgm_s: Interval = 60.0
    kernel_s: Interval = 2.0
    """At the latest; a line is read as soon as it is written."""

    disks_s: Interval = 30.0
    mounts_s: Interval = 15.0
    mount_hang_s: Interval = 10.0
    """A file system that does not answer for so long hangs."""

    pressure_s: Interval = 15.0
    clock_s: Interval = 60.0
    container_s: Interval = 30.0

    again_s: Annotated[float, Within(1, 24 * _HOUR_S)] = 300.0
    """Every how many seconds an alert that names its node without doubt is said again while it lasts."""

    error_ratio_max: Annotated[float, Within(0, 1)] = 0.001
    """Packets of an interface that may have errors, of those since the last look."""

    drop_ratio_max: Annotated[float, Within(0, 1)] = 0.01
    """Packets of an interface that may be dropped."""

    link_errors_per_min_max: Annotated[float, Within(0, 1e9)] = 10.0
    """Symbol and other link errors of an InfiniBand port in a minute."""

    gpu_temperature_c_max: Annotated[float, Within(30, 150)] = 85.0
    """A GPU above this is a hint, as is one that its driver slows down for heat."""

    pcie_replays_per_min_max: Annotated[float, Within(0, 1e9)] = 100.0
    """Packets that a GPU's PCIe link had to send again in a minute."""

    disk_free_bytes_min: Annotated[int, Within(0, 1 << 53)] = 256 * 1024 * 1024
    """Less than this where the agent or a job writes is trouble."""

    disk_free_percent_min: Annotated[float, Within(0, 100)] = 2.0
    """Less than this, of bytes or inodes, is a hint."""

    cpu_pressure_percent_max: Annotated[float, Within(0, 100)] = 80.0
    """Time in which some process waited for a processor, of the last minute."""

    memory_pressure_percent_max: Annotated[float, Within(0, 100)] = 20.0
    """Time in which every process waited for memory, of the last minute."""

    clock_skew_s_max: Annotated[float, Within(1e-6, _HOUR_S)] = 0.5
    """What the clock may be off by, as whoever keeps it right says."""

    commands: dict[str, CommandCheck] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for address in listed(self.gpus):
            pci_address(address)
        for name in self.commands:
            if name in CHECKS:
                raise ValueError(f"commands.{name} has the name of a check that is there already: take another")
        unknown = self.names_disabled - {*CHECKS, *self.commands, "all"}
        # What packages offer is not known here.
        if strangers := sorted(name for name in unknown if not name.startswith(PLUGIN)):
            raise ValueError(f"disabled names {', '.join(strangers)}, which is no check: there are {', '.join(CHECKS)}")

    @property
    def names_disabled(self) -> frozenset[str]:
        """The checks that do not run."""
        return frozenset(listed(self.disabled))


def listed(text: str) -> tuple[str, ...]:
    """What is between the commas."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)
