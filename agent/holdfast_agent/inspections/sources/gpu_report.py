"""The report on the GPUs of NVML, or AMD's library, as the probe sends it, and the troubles in it. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Reading, Trouble, unreadable

_THERMAL = 0x20 | 0x40
_POWER_BRAKE = 0x80
_SLOWED = 0x8
"""NVML's throttle reasons that show a fault; the power limit is normal."""

_FABRIC_DONE, _FABRIC_NOT_SUPPORTED = 3, 0


NVIDIA, AMD = "NVML", "AMD SMI"
"""Sources of reports."""
_DRIVERS = {NVIDIA: "NVIDIA", AMD: "amdgpu"}


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU; None: unknown. `lost`: by the driver. `silent`: why it has no data, not necessarily its fault."""

    index: int
    pci: str = ""
    uuid: str = ""
    lost: str = ""
    silent: str = ""
    temperature_c: int | None = None
    slow_reasons: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_pending: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None

    @property
    def name(self) -> str:
        """Name of the GPU in kernel log lines, if known."""
        return self.pci or f"GPU-{self.index}"


class GpuReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All GPUs. `failed`: what is missing, `library` (NVML itself) or `driver`, with the reason in `why`."""

    gpus: tuple[GpuState, ...] = ()
    failed: Literal["", "library", "driver", "versions"] = ""
    why: str = ""
    source: str = NVIDIA


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Known GPUs: `wanted` PCI addresses (None: all are the node's), the newest report of each by name, its time."""

    wanted: frozenset[str] | None = None
    gpus: dict[str, GpuState] = {}
    at_s: float = 0.0

    def with_(self, report: GpuReport, now_s: float) -> Known:
        """Return the knowledge after a report. GPUs without data keep their state; those gone are remembered."""
        if not report.gpus:
            return self
        readable = {gpu.name: gpu for gpu in self.named(report) if not gpu.lost and not gpu.silent}
        return msgspec.structs.replace(self, gpus={**self.gpus, **readable}, at_s=now_s)

    def named(self, report: GpuReport) -> list[GpuState]:
        """Return the node's GPUs in a report. A GPU that lacks even its address keeps its earlier one."""
        addresses = {gpu.index: gpu.pci for gpu in self.gpus.values()}
        gpus = [msgspec.structs.replace(gpu, pci=gpu.pci or addresses.get(gpu.index, "")) for gpu in report.gpus]
        return [gpu for gpu in gpus if self.wanted is None or gpu.pci in self.wanted]


def reading_of(report: GpuReport, known: Known, now_s: float, policy: InspectionPolicy) -> Reading:
    """Return the troubles that a report shows, given what is `known` of earlier ones. `now_s`: monotonic seconds."""
    if report.failed == "library":
        return unreadable(
            f"{report.why}: install the {_DRIVERS[report.source]} driver, or give the container its libraries"
        )
    if report.failed == "driver" and not known.gpus:
        return unreadable(f"{report.why}: load the {_DRIVERS[report.source]} driver, or disable this check")
    if report.failed:
        detail = f"the driver does not answer for any GPU: {report.why}"
        return Reading(troubles=(Trouble(kind="driver", detail=detail, confidence="evict"),))
    now = {gpu.name: gpu for gpu in known.named(report)}
    troubles = [
        Trouble(device=name, kind="lost", detail="the driver no longer lists this GPU", confidence="evict")
        for name in sorted({*known.gpus, *(known.wanted or ())} - set(now))
    ]
    minutes = (now_s - known.at_s) / 60
    for name, gpu in now.items():
        troubles += _troubles(gpu, known.gpus.get(name), minutes, policy)
    unread = {name: f"{report.source} has no data on it: {gpu.silent}" for name, gpu in now.items() if gpu.silent}
    seen = {name: _words(gpu) for name, gpu in now.items() if not gpu.lost and not gpu.silent}
    return Reading(troubles=tuple(troubles), unread=unread, seen=seen)


def _troubles(gpu: GpuState, before: GpuState | None, minutes: float, policy: InspectionPolicy) -> list[Trouble]:
    if gpu.lost:
        detail = f"the GPU cannot be reached: {gpu.lost}"
        return [Trouble(device=gpu.name, kind="lost", detail=detail, confidence="evict")]
    if gpu.silent:
        return []
    found: list[Trouble] = []

    def add(kind: str, detail: str, symptom: str, *, evict: bool = False, momentary: bool = False) -> None:
        confidence: Literal["evict", "hint"] = "evict" if evict else "hint"
        found.append(
            Trouble(
                device=gpu.name,
                kind=kind,
                detail=detail,
                confidence=confidence,
                symptom=symptom,
                is_momentary=momentary,
            )
        )

    reasons = gpu.slow_reasons or 0
    if gpu.temperature_c is not None and gpu.temperature_c > policy.gpu_temperature_c_max:
        allowed = f"the limit is {policy.gpu_temperature_c_max:g}"
        add("temperature", f"{gpu.temperature_c} degrees, {allowed}", Symptom.MFU_DECLINE)
    elif reasons & _THERMAL:
        add("temperature", f"slowed down by heat, at {gpu.temperature_c} degrees", Symptom.MFU_DECLINE)
    if reasons & _POWER_BRAKE or (reasons & _SLOWED and not reasons & _THERMAL):
        add("power", "slowed down by the board: power brake", Symptom.MFU_DECLINE)
    if before is not None and (gpu.ecc_uncorrected or 0) > (before.ecc_uncorrected or 0):
        count = (gpu.ecc_uncorrected or 0) - (before.ecc_uncorrected or 0)
        detail = f"{count} memory errors that ECC could not correct since the last look"
        add("ecc", detail, Symptom.GPU_MEMORY_ERROR, evict=True, momentary=True)
    elif before is None and gpu.ecc_uncorrected:
        detail = f"{gpu.ecc_uncorrected} memory errors that ECC could not correct since the driver was loaded"
        add("ecc since start", detail, Symptom.GPU_MEMORY_ERROR)
    if gpu.remap_failed:
        add("remap", "a bad row of memory could not be replaced", Symptom.GPU_MEMORY_ERROR, evict=True)
    elif gpu.remap_pending or gpu.pages_pending:
        add("remap", "bad memory is replaced at the next reset of the GPU", Symptom.GPU_MEMORY_ERROR)
    if gpu.pcie_width is not None and gpu.pcie_width_max is not None and 0 < gpu.pcie_width < gpu.pcie_width_max:
        detail = f"PCIe runs on {gpu.pcie_width} of {gpu.pcie_width_max} lanes"
        add("pcie width", detail, Symptom.MFU_DECLINE)
    if before is not None and minutes > 0 and gpu.pcie_replays is not None and before.pcie_replays is not None:
        rate = (gpu.pcie_replays - before.pcie_replays) / minutes
        if rate > policy.pcie_replays_per_min_max:
            allowed = f"the limit is {policy.pcie_replays_per_min_max:g}"
            add("pcie replays", f"PCIe replays {rate:.0f} packets per minute, {allowed}", Symptom.MFU_DECLINE)
    if gpu.fabric_state not in (None, _FABRIC_NOT_SUPPORTED) and (
        gpu.fabric_state == _FABRIC_DONE and gpu.fabric_status
    ):
        detail = f"the fabric manager could not connect this GPU (NVML status {gpu.fabric_status})"
        add("fabric", detail, Symptom.GPU_UNAVAILABLE, evict=True)
    elif gpu.fabric_state not in (None, _FABRIC_NOT_SUPPORTED, _FABRIC_DONE):
        detail = f"the fabric manager has not connected this GPU (NVML state {gpu.fabric_state}): does it run?"
        add("fabric", detail, Symptom.GPU_UNAVAILABLE)
    return found


def _words(gpu: GpuState) -> str:
    temperature = f"{gpu.temperature_c} degrees" if gpu.temperature_c is not None else "no temperature"
    width = f", PCIe x{gpu.pcie_width}" if gpu.pcie_width else ""
    return f"{temperature}{width}"
