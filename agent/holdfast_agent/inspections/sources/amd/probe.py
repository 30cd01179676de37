"""`python -m holdfast_agent.inspections.sources.amd.probe`: as `gpu_probe`, for AMD's GPUs by ROCm's library amdsmi."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from holdfast.pci import pci_address
from holdfast_agent.devices.answering import serve
from holdfast_agent.inspections.sources.gpu_report import AMD, GpuReport, GpuState

_PENDING, _UNRESERVABLE = 1, 2
"""States of a bad page of memory: replaced at the next reset, and cannot be replaced."""


def begin() -> Callable[[], GpuReport] | GpuReport:
    """Return the function that reports from now on, or the reason why there is none."""
    try:
        smi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:
        # What it raises without the library beneath it depends on its release.
        return GpuReport(source=AMD, failed="library", why=f"amdsmi: {error}")
    try:
        smi.amdsmi_init()
    except smi.AmdSmiException as error:
        return GpuReport(source=AMD, failed="driver", why=str(error))
    return lambda: _report(smi)


def _report(smi: Any) -> GpuReport:
    try:
        handles = smi.amdsmi_get_processor_handles()
    except smi.AmdSmiException as error:
        return GpuReport(source=AMD, failed="driver", why=str(error))
    return GpuReport(source=AMD, gpus=tuple(_state(smi, index, handle) for index, handle in enumerate(handles)))


def _state(smi: Any, index: int, handle: Any) -> GpuState:
    try:
        pci = pci_address(smi.amdsmi_get_gpu_device_bdf(handle))
    except smi.AmdSmiException as error:
        return GpuState(index=index, silent=str(error))

    def optional(call: Callable[[], Any]) -> Any:
        """Return None where this GPU, driver or release lacks the value."""
        try:
            return call()
        except (AttributeError, KeyError, smi.AmdSmiException):
            return None

    link = optional(lambda: smi.amdsmi_get_pcie_info(handle)) or {}
    moving, fixed = link.get("pcie_metric", {}), link.get("pcie_static", {})
    pages = optional(lambda: [int(page["status"]) for page in smi.amdsmi_get_gpu_bad_page_info(handle)])
    kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    hottest = getattr(kinds, "HOTSPOT", None) or getattr(kinds, "JUNCTION", None)
    return GpuState(
        index=index,
        pci=pci,
        uuid=optional(lambda: str(smi.amdsmi_get_gpu_device_uuid(handle))) or "",
        temperature_c=_number(optional(lambda: smi.amdsmi_get_temp_metric(handle, hottest, now))),
        ecc_uncorrected=_number(optional(lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"])),
        pages_pending=_PENDING in pages if pages is not None else None,
        remap_failed=_UNRESERVABLE in pages if pages is not None else None,
        pcie_width=_number(moving.get("pcie_width")),
        pcie_width_max=_number(fixed.get("max_pcie_width")),
        pcie_replays=_number(moving.get("pcie_replay_count")),
    )


def _number(value: Any) -> int | None:
    """Return a number; None for a text in its place, such as "N/A"."""
    return int(value) if isinstance(value, int | float) else None


if __name__ == "__main__":
    serve(begin)
