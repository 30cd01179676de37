"""Process groups for one test, made in the test's process over the group's own store, and never torn down.

The process ends right after its test; destroying a group would only wait for partners.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from holdfast_checks.result import WorkerContext

LOOPBACK = "lo"


def among_workers(context: WorkerContext, name: str, limit_s: float, device: torch.device) -> None:
    """Make a group of all workers of this node; needs no network."""
    # gloo and NCCL both read it when they look for an interface.
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    store = FileStore(os.path.join(context.scratch, name), context.workers)
    _begin(store, context.worker, context.workers, limit_s, device)


def among_nodes(store: Store, rank: int, world_size: int, limit_s: float, device: torch.device) -> None:
    """Make a group of the workers of several nodes, over the training network."""
    _begin(store, rank, world_size, limit_s, device)


def _begin(store: Store, rank: int, world_size: int, limit_s: float, device: torch.device) -> None:
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=limit_s),
        device_id=device if device.type == "cuda" else None,
    )
