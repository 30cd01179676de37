"""GPUs by NVML or amdsmi in a separate process: lost GPUs, a hanging driver, heat, memory, PCIe, the fabric manager."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.devices.asked_process import AskedProcess, LibraryHangs, Starved
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable
from holdfast_agent.inspections.node_hardware import Gpus
from holdfast_agent.inspections.sources.gpu_report import AMD, NVIDIA, GpuReport, Known, reading_of

_ROOM = "holdfast_agent.inspections.sources"
PROBES = {
    NVIDIA: (sys.executable, "-P", "-m", f"{_ROOM}.gpu_probe"),
    AMD: (sys.executable, "-P", "-m", f"{_ROOM}.amd.probe"),
}


class GpuProbe(AskedProcess):
    """The process that asks for the state of all GPUs."""

    def __init__(self, command: Sequence[str] = (), source: str = NVIDIA) -> None:
        """`command`: another process in its place."""
        super().__init__(command or PROBES[source], source)

    def ask(self, limit_s: float) -> GpuReport:
        """Return the answer. Raises LibraryHangs, Starved, or OSError if the process ended."""
        return msgspec.json.decode(self.line(limit_s), type=GpuReport)


class GpuInspection:
    """Reads the report and compares it with what is known of the GPUs."""

    def __init__(self, policy: InspectionPolicy, gpus: Gpus, probe: GpuProbe | None = None) -> None:
        self._policy = policy
        self._gpus = gpus
        self.source = AMD if gpus.are_amds else NVIDIA
        self._probe = probe or GpuProbe(source=self.source)
        self._known = Known(wanted=gpus.own if gpus.are_divided else None)

    def read(self) -> Reading:
        if not self._gpus.own:
            hidden = bool(self._gpus.of_machine)
            return Reading(absent="no GPU is this node's" if hidden else "no GPU on the PCI bus")
        try:
            report = self._probe.ask(self._policy.gpu_hang_s)
        except LibraryHangs as error:
            detail = (
                f"the driver has not answered for {self._policy.gpu_hang_s:g} s: the process that asks it is in {error}"
            )
            return Reading(troubles=(Trouble(kind="hang", detail=detail, confidence="evict"),))
        except Starved:
            return unreadable(f"the process that asks {self.source} got no processor for {self._policy.gpu_hang_s:g} s")
        now_s = time.monotonic()
        reading = reading_of(report, self._known, now_s, self._policy)
        self._known = self._known.with_(report, now_s)
        return reading

    def close(self) -> None:
        self._probe.close()


def gpu_check(policy: InspectionPolicy, inspection: GpuInspection) -> Check:
    """Return the check of GPUs."""
    return Check(
        name="gpu",
        source=inspection.source,
        read=inspection.read,
        interval_s=policy.gpu_s,
        # The probe's own limit comes first: it tells a hanging driver from a busy machine.
        limit_s=policy.gpu_hang_s + 10,
        symptom=Symptom.GPU_UNAVAILABLE,
    )
