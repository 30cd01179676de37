"""The device of this rank, and the process group that goes with it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def begin() -> torch.device:
    """Join the job on this rank's accelerator (over nccl on GPUs), or on the CPU over gloo where there is none."""
    if not torch.accelerator.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
    return device
