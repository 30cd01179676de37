"""The device that a worker tests: one GPU, or the CPU. Only workers query it, so the driver has no CUDA."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from holdfast_checks.result import WorkerContext


def device_of(context: WorkerContext) -> torch.device:
    """Return the worker's device, and make a GPU the current one."""
    if torch.cuda.is_available():
        device = torch.device("cuda", context.worker % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def name_of(device: torch.device, context: WorkerContext) -> str:
    return f"GPU {device.index}" if device.type == "cuda" else f"CPU worker {context.worker}"


def hardware_of(device: torch.device) -> str:
    """Return the hardware and library versions: results compare only where equal, as floating-point sums differ."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, torch {torch.__version__}"
    return f"{_cpu_model()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def gpus() -> int:
    """Return the number of GPUs from the kernel driver. CUDA is not asked: it would keep this process from forking."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def settle(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def be_exact() -> None:
    """Make results bitwise reproducible: one thread, one order of sums. Must be called before the GPU is used."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.set_num_threads(1)
    # As `torch.use_deterministic_algorithms` does, without the settings of the compiler: they take a second to import.
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
