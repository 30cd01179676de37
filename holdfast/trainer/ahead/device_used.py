"""A rank's report on the accelerator that it trains on, from which its agent decides on a process with a context.

Only ranks are asked: without a context no process can read how much memory of a device is free.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.trainer.report import DEVICE_USED, report
from holdfast.trainer.steps.guard import harmless

NAMES_MAX = 20
STEPS = 3
"""Optimizer steps before the report: by then the job has the memory that its steps need."""
_READ_WITH_CONTEXT = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_", "MIOPEN_", "AMD_", "GPU_"),
    *("ZE_", "ZES_", "SYCL_", "ONEAPI_"),
    *("PYTORCH_CUDA", "PYTORCH_ALLOC", "PYTORCH_NO_CUDA", "PYTORCH_NVML", "PYTORCH_HIP", "PYTORCH_ROCM"),
    *("TORCH_CUDA", "TORCH_CUDNN", "TORCH_ALLOW_TF32", "TORCH_BLAS", "TORCH_LINALG", "TORCH_HIP", "TORCH_ROCM"),
)
"""Beginnings of the names of variables that drivers and torch may read when a context is made. Not those of
communicators (TORCH_NCCL_...), of which Holdfast's own hooks set some."""
_OF_COMPILERS = frozenset({"CUDA_HOME", "CUDA_PATH"})
"""torch.compile sets them while it trains."""


class _Watched:
    environment: Mapping[str, str] = {}
    steps_left = 0


def begin() -> None:
    """Note the variables with which the script of a rank that trains starts."""
    _Watched.environment, _Watched.steps_left = _read_with_context(), STEPS


def stepped(optimizer: Any, *_: Any) -> None:
    """Report after a few steps of any optimizer; a hook of it."""
    if _Watched.steps_left:
        _Watched.steps_left -= 1
        if not _Watched.steps_left:
            _note_device(optimizer)


@harmless
def _note_device(optimizer: Any) -> None:
    # The device of the weights, and not the current one, which a script need not choose.
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    device = next((weight.device for weight in weights), None)
    if device is None or device.type == "cpu":
        return
    from holdfast.trainer.device.adapters import free_bytes

    now = _read_with_context()
    changed = sorted(name for name in {*now, *_Watched.environment} if now.get(name) != _Watched.environment.get(name))
    if device.type == "cuda" and _is_allocator_of_script():
        changed.append("torch's allocator")
    report(DEVICE_USED, device=str(device), free_bytes=free_bytes(device), changed=changed[:NAMES_MAX])


def _is_allocator_of_script() -> bool:
    """Return True if a library of the script allocates CUDA's memory, which it can choose to before any is in use."""
    torch: Any = sys.modules["torch"]
    return bool(torch.cuda.get_allocator_backend() == "pluggable")


def _read_with_context() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_READ_WITH_CONTEXT) and name not in _OF_COMPILERS
    }
