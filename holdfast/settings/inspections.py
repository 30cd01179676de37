"""What can be set of the inspections of nodes: how often each looks, what it takes for trouble, checks of one's own."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from holdfast.pci import pci_address
from holdfast.settings.ranges import require_within

Confidence = Literal["evict", "tolerate", "hint"]

_HOUR_S = 3600.0
_INTERVAL = (0.1, _HOUR_S)

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


class CommandCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check that is an executable, `[inspections.commands.NAME]`: Nagios exit codes, JSON on stdout if it likes."""

    command: str
    """The program and its arguments, as a shell would split them; no shell runs."""

    interval_s: float = 60.0
    limit_s: float = 10.0
    """It is killed after so long, and then counts as broken."""

    confidence: Confidence = "hint"
    """What exit code 2 (critical) asks for; 1 (warning) is a hint."""

    symptom: str = ""
    misses: int = 1
    """So many readings in a row until it is an alert."""

    scope: Literal["node", "host"] = "node"

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command {self.command!r} cannot be split into words: {error}") from error
        if not words:
            raise ValueError("command names no program")
        require_within(self, interval_s=_INTERVAL, limit_s=(0.01, _HOUR_S), misses=(1, 1000))


class InspectionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    network_s: float = 30.0
    switch_s: float = 30.0
    switch_misses: int = 2
    """Readings in a row without an answer until it is an alert."""

    gpu_s: float = 10.0
    gpu_hang_s: float = 10.0
    """A driver that does not answer for so long hangs."""

    dcgm_s: float = 60.0
    kernel_s: float = 2.0
    """At the latest; a line is read as soon as it is written."""

    disks_s: float = 30.0
    mounts_s: float = 15.0
    mount_hang_s: float = 10.0
    """A file system that does not answer for so long hangs."""

    pressure_s: float = 15.0
    clock_s: float = 60.0
    container_s: float = 30.0

    again_s: float = 300.0
    """Every how many seconds an alert that names its node without doubt is said again while it lasts."""

    error_ratio_max: float = 0.001
    """Packets of an interface that may have errors, of those since the last look."""

    drop_ratio_max: float = 0.01
    """Packets of an interface that may be dropped."""

    link_errors_per_min_max: float = 10.0
    """Symbol and other link errors of an InfiniBand port in a minute."""

    gpu_temperature_c_max: float = 85.0
    """A GPU above this is a hint, as is one that its driver slows down for heat."""

    pcie_replays_per_min_max: float = 100.0
    """Packets that a GPU's PCIe link had to send again in a minute."""

    disk_free_bytes_min: int = 256 * 1024 * 1024
    """Less than this where the agent or a job writes is trouble."""

    disk_free_percent_min: float = 2.0
    """Less than this, of bytes or inodes, is a hint."""

    cpu_pressure_percent_max: float = 80.0
    """Time in which some process waited for a processor, of the last minute."""

    memory_pressure_percent_max: float = 20.0
    """Time in which every process waited for memory, of the last minute."""

    clock_skew_s_max: float = 0.5
    """What the clock may be off by, as whoever keeps it right says."""

    commands: dict[str, CommandCheck] = {}

    def __post_init__(self) -> None:
        require_within(
            self,
            network_s=_INTERVAL,
            switch_s=_INTERVAL,
            switch_misses=(1, 1000),
            gpu_s=_INTERVAL,
            gpu_hang_s=(0.1, _HOUR_S),
            dcgm_s=_INTERVAL,
            kernel_s=_INTERVAL,
            disks_s=_INTERVAL,
            mounts_s=_INTERVAL,
            mount_hang_s=(0.1, _HOUR_S),
            pressure_s=_INTERVAL,
            clock_s=_INTERVAL,
            container_s=_INTERVAL,
            again_s=(1, 24 * _HOUR_S),
            error_ratio_max=(0, 1),
            drop_ratio_max=(0, 1),
            link_errors_per_min_max=(0, 1e9),
            gpu_temperature_c_max=(30, 150),
            pcie_replays_per_min_max=(0, 1e9),
            disk_free_bytes_min=(0, 1 << 53),
            disk_free_percent_min=(0, 100),
            cpu_pressure_percent_max=(0, 100),
            memory_pressure_percent_max=(0, 100),
            clock_skew_s_max=(1e-6, _HOUR_S),
        )
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
