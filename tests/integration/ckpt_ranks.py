"""What the ranks of test_ckpt_commands.py run: ``ckpt_ranks.py (save|restore) DIRECTORY``.

The state has what a checkpoint can hold: DTensors in uneven shards, tensors of odd kinds, numbers, state of one shard
and of one rank.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from holdfast.trainer.checkpoint import Checkpointer, PerRank, PerShard, RngState

WEIGHT = torch.arange(66.0).reshape(11, 6)
KINDS = {
    "half": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "mask": torch.tensor([True, False, True]),
    "wide": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.empty(0, 5),
}


class Box:
    """A Stateful that holds whatever it is given."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return dict(self.content)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.content = state_dict


def state(rank: int, factor: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(WEIGHT * factor, mesh, [Shard(0)])
    moments = distribute_tensor(WEIGHT * factor + 1, mesh, [Shard(0)])
    return {
        "model": Box({"weight": sharded, **{name: (value * factor).to(value.dtype) for name, value in KINDS.items()}}),
        "optimizer": Box(
            {"state": {"0": {"exp_avg": moments}}, "param_groups": [{"lr": factor, "betas": (0.9, 0.95)}]}
        ),
        "stage": PerShard(Box({"weight": torch.full((3,), (rank + 1) * factor)}), f"pp={rank}"),
        "mine": PerRank(Box({"seen": torch.full((2,), (rank + 10) * factor)})),
        "rng": PerRank(RngState()),
        "tokens": int(1234 * factor),
    }


def save(directory: str, rank: int) -> None:
    checkpointer = Checkpointer(directory, mesh={"dp": 2})
    for step in (7, 9):
        checkpointer.save(step, state(rank, 1.0))


def restore(directory: str, rank: int) -> None:
    restore_all(f"{directory}/dcp", rank)
    restore_tensors(f"{directory}/safetensors", rank)


def restore_all(directory: str, rank: int) -> None:
    restored = state(rank, 0.0)
    assert Checkpointer(directory).restore(restored) == 3
    weight = restored["model"].content["weight"]
    assert isinstance(weight, DTensor)
    assert torch.equal(weight.full_tensor(), WEIGHT)
    for name, value in KINDS.items():
        assert torch.equal(restored["model"].content[name], value), name
    optimizer = restored["optimizer"].content
    assert torch.equal(optimizer["state"]["0"]["exp_avg"].full_tensor(), WEIGHT + 1)
    assert optimizer["param_groups"] == [{"lr": 1.0, "betas": (0.9, 0.95)}]
    assert torch.all(restored["stage"].value.content["weight"] == rank + 1)
    assert torch.all(restored["mine"].value.content["seen"] == rank + 10)
    assert restored["tokens"] == 1234


def restore_tensors(directory: str, rank: int) -> None:
    """What came by way of safetensors has nothing but tensors."""
    full = state(rank, 0.0)
    restored = {name: full[name] for name in ("model", "stage", "mine")}
    assert Checkpointer(directory).restore(restored) == 4
    assert torch.equal(restored["model"].content["weight"].full_tensor(), WEIGHT)
    for name, value in KINDS.items():
        assert torch.equal(restored["model"].content[name], value), name
    assert torch.all(restored["stage"].value.content["weight"] == rank + 1)
    assert torch.all(restored["mine"].value.content["seen"] == rank + 10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"save": save, "restore": restore}[sys.argv[1]](sys.argv[2], dist.get_rank())
    dist.barrier()
    logging.shutdown()
    os._exit(0)
