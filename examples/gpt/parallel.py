"""The job's mesh, and tensor parallelism as Megatron-LM writes it: two autograd functions and two linear layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

DIMS = ("pp", "dp", "tp")


@dataclass(frozen=True)
class Dim:
    """One dimension of the mesh as this rank sees it. ``group`` is None where the rank is alone."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None

    def peer(self, rank: int) -> int:
        """The global rank of a member of this rank's group."""
        assert self.group is not None
        return dist.get_global_rank(self.group, rank)


@dataclass(frozen=True)
class Mesh:
    """Pipeline, data and tensor parallelism."""

    pp: Dim
    dp: Dim
    tp: Dim

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name).size for name in DIMS}

    @property
    def shard(self) -> str:
        """Names this rank's part of the model: the same on all data-parallel replicas."""
        return f"pp={self.pp.rank},tp={self.tp.rank}"


def parse_mesh(text: str, world_size: int) -> dict[str, int]:
    """``pp=2,dp=2,tp=1`` as sizes, outermost first; an empty text puts all ranks into data parallelism."""
    sizes: dict[str, int] = {}
    for pair in filter(None, text.split(",")):
        name, _, size = pair.strip().partition("=")
        if name not in DIMS or name in sizes or not size.isdigit() or int(size) < 1:
            raise ValueError(f"mesh {text!r}: {pair!r} is not one of pp=N, dp=N, tp=N, each at most once")
        sizes[name] = int(size)
    if not sizes:
        sizes = {"dp": world_size}
    if math.prod(sizes.values()) != world_size:
        raise ValueError(f"mesh {text!r} is for {math.prod(sizes.values())} ranks, the job has {world_size}")
    return sizes


def build_mesh(sizes: dict[str, int], device: torch.device) -> Mesh:
    """The process groups of every dimension with more than one rank; the others cost a rendezvous and carry nothing."""
    shared = {name: size for name, size in sizes.items() if size > 1}
    dims = dict.fromkeys(DIMS, Dim())
    if shared:
        device_mesh: DeviceMesh = init_device_mesh(device.type, tuple(shared.values()), mesh_dim_names=tuple(shared))
        for name, size in shared.items():
            dims[name] = Dim(size, device_mesh.get_local_rank(name), device_mesh.get_group(name))
    return Mesh(**dims)


class _ToTensorParallel(torch.autograd.Function):
    """Identity forward; backward sums the gradients that each shard of the following layer contributes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _FromTensorParallel(torch.autograd.Function):
    """Sums the shards' partial results forward; identity backward, for every shard sees the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class ColumnParallelLinear(nn.Linear):
    """Holds some of the output features; its result stays split."""

    def __init__(self, in_features: int, out_features: int, tp: Dim) -> None:
        super().__init__(in_features, out_features // tp.size)
        self._group = tp.group
        _mark_split(self.weight, self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._group is not None:
            x = _ToTensorParallel.apply(x, self._group)
        return functional.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Linear):
    """Takes a split input, holds the matching input features, and sums over the shards; the bias is added once."""

    def __init__(self, in_features: int, out_features: int, tp: Dim) -> None:
        super().__init__(in_features // tp.size, out_features)
        self._group = tp.group
        _mark_split(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, self.weight)
        if self._group is not None:
            y = _FromTensorParallel.apply(y, self._group)
        return y + self.bias


def is_split(parameter: nn.Parameter) -> bool:
    """Return True if each tensor-parallel rank holds a different part of it, not the same whole."""
    return getattr(parameter, "tensor_parallel", False)


def _mark_split(*parameters: nn.Parameter) -> None:
    for parameter in parameters:
        parameter.tensor_parallel = True  # type: ignore[attr-defined]
