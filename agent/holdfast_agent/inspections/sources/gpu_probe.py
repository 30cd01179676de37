"""`python -m holdfast_agent.inspections.sources.gpu_probe`: answers each line on stdin with one line of NVML data.

`holdfast_agent.devices.answering` has the reason why it is a process.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, Literal

from holdfast.pci import pci_address
from holdfast_agent.devices.answering import serve
from holdfast_agent.inspections.sources.gpu_report import GpuReport, GpuState


def begin() -> Callable[[], GpuReport] | GpuReport:
    """Return what reports from now on, or what is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        return GpuReport(failed="library", why=f"{error} (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuReport(failed=_kind(nvml, error), why=str(error))
    return lambda: _report(nvml)


def _kind(nvml: Any, error: Any) -> Literal["library", "driver", "versions"]:
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return "library"
    return "versions" if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH else "driver"


def _report(nvml: Any) -> GpuReport:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return GpuReport(failed=_kind(nvml, error), why=str(error))
    return GpuReport(gpus=tuple(_state(nvml, index) for index in range(count)))


def _state(nvml: Any, index: int) -> GpuState:
    lost = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
    pci = uuid = ""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        why = str(error)
        is_lost = error.value in lost
        return GpuState(index=index, pci=pci, uuid=uuid, lost=why if is_lost else "", silent="" if is_lost else why)

    def optional(call: Callable[[], Any]) -> Any:
        """Return None where this GPU or driver lacks the value."""
        try:
            return call()
        except AttributeError:
            return None
        except nvml.NVMLError as error:
            if error.value in lost:
                raise
            return None

    try:
        remapped = optional(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        fabric = optional(lambda: _fabric(nvml, handle))
        return GpuState(
            index=index,
            pci=pci,
            uuid=uuid,
            temperature_c=optional(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            slow_reasons=optional(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            ecc_uncorrected=optional(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            ),
            remap_pending=bool(remapped[2]) if remapped is not None else None,
            remap_failed=bool(remapped[3]) if remapped is not None else None,
            pages_pending=_flag(optional(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))),
            pcie_width=optional(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            pcie_width_max=optional(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
            pcie_replays=optional(lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle)),
            fabric_state=fabric[0] if fabric is not None else None,
            fabric_status=fabric[1] if fabric is not None else None,
        )
    except nvml.NVMLError as error:
        return GpuState(index=index, pci=pci, uuid=uuid, lost=str(error))


def _fabric(nvml: Any, handle: Any) -> tuple[int, int]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    # The call writes into its argument.
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return int(info.state), int(info.status)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    serve(begin)
