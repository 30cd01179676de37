"""What the ranks of test_checkpoint_ranks.py run: ``checkpoint_worker.py (save|reshard) DIRECTORY``."""

from __future__ import annotations

import logging
import os
import resource
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from holdfast.exit_codes import SUPERSEDED
from holdfast.trainer.checkpoint import Checkpointer, CheckpointError, CheckpointMismatch, PerRank, PerShard, RngState
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.workplace import Owner

WHOLE = torch.arange(60.0).reshape(10, 6)
"""Ten rows: uneven over four ranks, so that the last shard is short."""


class Box:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        self.value = state_dict["value"]


def state(dims: tuple[int, ...], fill: float | None = None) -> dict[str, object]:
    """A DTensor sharded over all ranks, one sharded over one dimension and replicated over the other, a number."""
    flat = init_device_mesh("cpu", (dist.get_world_size(),))
    nested = init_device_mesh("cpu", dims)
    whole = WHOLE if fill is None else torch.full_like(WHOLE, fill)
    return {
        "sharded": Box(distribute_tensor(whole, flat, [Shard(0)])),
        "hybrid": Box(distribute_tensor(whole, nested, [Replicate(), Shard(1)])),
        "number": 7 if fill is None else 0,
    }


def check(restored: dict[str, object]) -> None:
    for name in ("sharded", "hybrid"):
        value = restored[name].value
        assert isinstance(value, DTensor)
        assert torch.equal(value.full_tensor(), WHOLE), name
    assert restored["number"] == 7


def save(directory: Path) -> None:
    rank = dist.get_rank()
    checkpointer = Checkpointer(directory / "sharded")
    checkpointer.save(1, state((2, 2)))
    fresh = state((2, 2), fill=-1)
    assert checkpointer.restore(fresh) == 1
    check(fresh)

    replicated_once(directory / "replicas", rank)
    damage_on_one_rank(directory / "damage", rank)
    failure_on_one_rank(directory / "failure", rank)
    mismatch_on_one_rank(directory / "mismatch", rank)
    replaced_while_saving(directory / "replaced")


def replicated_once(directory: Path, rank: int) -> None:
    shard, replica = divmod(rank, 2)
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, {"model": PerShard(Box(torch.full((50_000,), float(shard))), f"pp={shard}", replica)})
    dist.barrier()
    is_writer = (directory / f"step-00000001/rank-{rank:05d}.part").stat().st_size > 200_000
    assert is_writer == (replica == 0)
    box = Box(torch.zeros(50_000))
    checkpointer.restore({"model": PerShard(box, f"pp={shard}", replica)})
    assert torch.all(box.value == shard)


def damage_on_one_rank(directory: Path, rank: int) -> None:
    checkpointer = Checkpointer(directory)
    for step in (1, 2):
        checkpointer.save(step, {"mine": PerRank(Box(torch.full((100,), float(step * 10 + rank))))})
    if rank == 2:
        part = directory / "step-00000002/rank-00002.part"
        data = bytearray(part.read_bytes())
        data[8] ^= 0x40
        part.write_bytes(data)
    dist.barrier()
    box = Box(torch.zeros(100))
    assert checkpointer.restore({"mine": PerRank(box)}) == 1
    assert torch.all(box.value == 10 + rank)
    dist.barrier()
    assert sorted(path.name for path in directory.glob("step-*")) == ["step-00000001", "step-00000002.damaged"]


def failure_on_one_rank(directory: Path, rank: int) -> None:
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, {"mine": PerRank(Box(torch.zeros(10)))})
    if rank == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    with pytest.raises(CheckpointError, match="File too large" if rank == 3 else "rank 3 could not do its part"):
        checkpointer.save(2, {"mine": PerRank(Box(torch.zeros(100_000)))})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    dist.barrier()
    assert [path.name for path in directory.rglob("step-*")] == ["step-00000001"]
    dist.barrier()
    checkpointer.save(3, {"mine": PerRank(Box(torch.zeros(10)))})


class ReplacedStorage(DirectoryStorage):
    """A newer generation comes when everything is written, before it is published."""

    def publish(self, manifest: CheckpointManifest) -> str:
        DirectoryStorage(self.root, owner=Owner("job", 1000, 8)).claim()
        return super().publish(manifest)


def replaced_while_saving(directory: Path) -> None:
    """Only rank 0 is refused; all end as ranks that were replaced, none as one with an error."""
    checkpointer = Checkpointer(storage=ReplacedStorage(directory, owner=Owner("job", 1000, 7)))
    state = {"mine": PerRank(Box(torch.zeros(10)))}
    for leftover in (lambda: checkpointer.save(1, state), lambda: checkpointer.restore(state)):
        with pytest.raises(SystemExit) as ended:
            leftover()
        assert ended.value.code == SUPERSEDED
        dist.barrier()


def mismatch_on_one_rank(directory: Path, rank: int) -> None:
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, {"mine": PerRank(Box(torch.zeros(10)))})
    with pytest.raises(CheckpointMismatch, match="Size mismatch" if rank == 1 else "another rank cannot use it"):
        checkpointer.restore({"mine": PerRank(Box(torch.zeros(11 if rank == 1 else 10)))})


def reshard(directory: Path) -> None:
    fresh = state((1, 2), fill=-1)
    checkpointer = Checkpointer(directory / "sharded", mesh={"dp": 2})
    assert checkpointer.restore(fresh) == 1
    check(fresh)
    with pytest.raises(CheckpointMismatch, match="saved with 4 ranks; this job runs with 2 ranks as dp=2"):
        checkpointer.restore({**fresh, "rng": PerRank(RngState())})


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    {"save": save, "reshard": reshard}[sys.argv[1]](Path(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()
    # An interpreter that ends while gloo's threads do may call std::terminate; the work is done.
    logging.shutdown()
    os._exit(0)
