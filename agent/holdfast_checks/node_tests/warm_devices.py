"""Device test of a warm-up: bytes come back from the device as they went, and a short GEMM is right."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from holdfast.symptoms import Symptom
from holdfast_checks import numbers
from holdfast_checks.devices import device_of, name_of
from holdfast_checks.node_tests import gemm
from holdfast_checks.result import StageResult, StageTask, failed, skipped

COPIED_BYTES = 32 * 1024 * 1024
_COMPUTE_MODE = 20
"""CU_DEVICE_ATTRIBUTE_COMPUTE_MODE."""
_DEFAULT_MODE = 0


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Copy bytes to the device and back, multiply small matrices, and report what is wrong."""
    if not _is_shareable(task.context.worker):
        # The rank that starts meanwhile would find it taken.
        return [skipped("the GPU is in exclusive mode", device=f"GPU {task.context.worker}")]
    device = device_of(task.context)
    wrong = _copied(device)
    if wrong:
        symptom = Symptom.GPU_MEMORY_ERROR if device.type == "cuda" else Symptom.MEMORY_ERROR
        return [failed(symptom.value, wrong, device=name_of(device, task.context))]
    return gemm.run(task, begin)


def _copied(device: torch.device) -> str:
    """Return how bytes that went to the device and back differ; "" if they do not."""
    size = COPIED_BYTES if device.type == "cuda" else COPIED_BYTES // 16
    sent = torch.from_numpy(numbers.bits(7, size // 8).view("int64"))
    back = sent.to(device, copy=True).clone().to("cpu")
    differ = int(torch.count_nonzero(back != sent))
    return f"{differ} of {len(sent)} words differ after a copy to the device and back" if differ else ""


def _is_shareable(device: int) -> bool:
    """Return False for a GPU that one process at a time may use. Asks the driver, and makes no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    mode, handle = ctypes.c_int(_DEFAULT_MODE), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device):
        return True
    driver.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, handle)
    return mode.value == _DEFAULT_MODE
