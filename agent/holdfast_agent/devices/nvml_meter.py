"""`python -m holdfast_agent.devices.nvml_meter`: the activity of NVIDIA's GPUs by NVML, for each line on stdin.

Apart from the process of the inspections: metrics that hang or crash it must not look like a GPU that does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from holdfast.pci import pci_address
from holdfast_agent.devices.answering import serve
from holdfast_agent.devices.device_reading import DeviceReading, MeterReport
from holdfast_agent.devices.gpm import GpmSampler

_KIBIBYTE, _KILOBYTE = 1024, 1000
_ALL_LINKS: Final = 0xFFFFFFFF
"""Scope of a field of NVLink: the sum over all links of the GPU."""


def begin() -> Callable[[], MeterReport] | MeterReport:
    """Return what reports from now on, or what is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        return MeterReport(failed="library", why=f"{error} (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return MeterReport(failed="library", why=str(error))
    return NvmlMeter(nvml).report


class NvmlMeter:
    """Asks NVML. What a GPU or driver lacks is asked once."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpm = GpmSampler(nvml)
        self._without: set[tuple[int, str]] = set()

    def report(self) -> MeterReport:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            return MeterReport(failed="driver", why=str(error))
        readings = (self._reading(index) for index in range(count))
        return MeterReport(devices=tuple(reading for reading in readings if reading is not None))

    def _reading(self, index: int) -> DeviceReading | None:
        """Return None for a GPU that is lost or gives no address: the inspections report it."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus = nvml.nvmlDeviceGetPciInfo(handle).busId
            device = pci_address(bus.decode(errors="replace") if isinstance(bus, bytes) else bus)
            rates = self._gpm.rates(index, handle)
        except (nvml.NVMLError, ValueError):
            return None
        if "busy_share" not in rates:
            rates |= self._optional(index, "busy", lambda: self._busy(handle)) or {}
        counters = self._optional(index, "links", lambda: self._links(handle)) or {}
        if "pcie_bytes_per_s" not in rates:
            rates |= self._optional(index, "pcie", lambda: self._pcie(handle)) or {}
        pids = self._optional(index, "pids", lambda: self._pids(handle)) or ()
        return DeviceReading(device=device, pids=pids, rates=rates, counters=counters)

    def _optional(self, index: int, name: str, call: Callable[[], Any]) -> Any:
        """Return None where this GPU or driver lacks the value, and do not ask again."""
        if (index, name) in self._without:
            return None
        try:
            return call()
        except AttributeError:
            self._without.add((index, name))
        except self._nvml.NVMLError as error:
            lacking = (
                self._nvml.NVML_ERROR_NOT_SUPPORTED,
                self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                self._nvml.NVML_ERROR_NO_PERMISSION,
            )
            if error.value in lacking:
                self._without.add((index, name))
        return None

    def _busy(self, handle: Any) -> dict[str, float]:
        # Of NVML's last sample, which covers between a sixth of a second and a second.
        return {"busy_share": self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100}

    def _links(self, handle: Any) -> dict[str, int]:
        """Return what NVLinks carried since the driver was loaded, without the protocol's overhead."""
        nvml = self._nvml
        fields = {
            "link_sent_bytes_per_s": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "link_received_bytes_per_s": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        found = nvml.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS) for field in fields.values()])
        if any(value.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED for value in found):
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        return {
            name: _KIBIBYTE * value.value.ullVal
            for name, value in zip(fields, found, strict=True)
            if value.nvmlReturn == nvml.NVML_SUCCESS and value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        }

    def _pcie(self, handle: Any) -> dict[str, float]:
        # NVML counts for 20 ms in each call. Its fields with counters of bytes may be of 32 bits, which are full within
        # a tenth of a second.
        nvml = self._nvml
        kinds = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return {"pcie_bytes_per_s": _KILOBYTE * sum(nvml.nvmlDeviceGetPcieThroughput(handle, kind) for kind in kinds)}

    def _pids(self, handle: Any) -> tuple[int, ...]:
        return tuple(process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))


if __name__ == "__main__":
    serve(begin)
