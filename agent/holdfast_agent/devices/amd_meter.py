"""`python -m holdfast_agent.devices.amd_meter`: as `nvml_meter`, for AMD's GPUs by ROCm's library amdsmi.

amdsmi does not measure matrix cores, so there is no `tensor_share`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from holdfast.pci import pci_address
from holdfast_agent.devices.answering import serve
from holdfast_agent.devices.device_reading import DeviceReading, MeterReport

_KIBIBYTE = 1024
_BYTES_OF_MEGABIT = 1_000_000 / 8


def begin() -> Callable[[], MeterReport] | MeterReport:
    """Return the function that reports from now on, or a report of what is missing."""
    try:
        smi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:
        # What it raises without the library beneath it depends on its release.
        return MeterReport(failed="library", why=f"amdsmi: {error}")
    try:
        smi.amdsmi_init()
    except smi.AmdSmiException as error:
        return MeterReport(failed="library", why=str(error))
    return lambda: _report(smi)


def _report(smi: Any) -> MeterReport:
    try:
        handles = smi.amdsmi_get_processor_handles()
    except smi.AmdSmiException as error:
        return MeterReport(failed="driver", why=str(error))
    readings = (_reading(smi, handle) for handle in handles)
    return MeterReport(devices=tuple(reading for reading in readings if reading is not None))


def _reading(smi: Any, handle: Any) -> DeviceReading | None:
    try:
        device = pci_address(smi.amdsmi_get_gpu_device_bdf(handle))
    except (smi.AmdSmiException, ValueError):
        return None

    def optional(call: Callable[[], Any]) -> Any:
        """Return None where this GPU, driver or release lacks the value."""
        try:
            return call()
        except (AttributeError, KeyError, TypeError, smi.AmdSmiException):
            return None

    busy = _number(optional(lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"]))
    # Both directions together, in megabits per second.
    pcie = _number(optional(lambda: smi.amdsmi_get_pcie_info(handle)["pcie_metric"]["pcie_bandwidth"]))
    metrics = optional(lambda: smi.amdsmi_get_gpu_metrics_info(handle)) or {}
    moved = {
        "link_sent_bytes_per_s": _sum(metrics.get("xgmi_write_data_acc")),
        "link_received_bytes_per_s": _sum(metrics.get("xgmi_read_data_acc")),
    }
    rates = {
        "busy_share": busy / 100 if busy is not None else None,
        "pcie_bytes_per_s": pcie * _BYTES_OF_MEGABIT if pcie is not None else None,
    }
    return DeviceReading(
        device=device,
        pids=tuple(optional(lambda: [int(it["pid"]) for it in smi.amdsmi_get_gpu_process_list(handle)]) or ()),
        rates={name: rate for name, rate in rates.items() if rate is not None},
        # amdsmi counts xGMI in KiB.
        counters={name: _KIBIBYTE * kibibytes for name, kibibytes in moved.items() if kibibytes is not None},
    )


def _sum(links: Any) -> int | None:
    """Return the sum over all links; None if it is 0, for a GPU without xGMI has zeros there as well."""
    counted = [int(link) for link in links if isinstance(link, int)] if isinstance(links, list) else []
    return sum(counted) or None


def _number(value: Any) -> float | None:
    """Return a number; None for what the library has in its place, such as "N/A"."""
    return float(value) if isinstance(value, int | float) else None


if __name__ == "__main__":
    serve(begin)
