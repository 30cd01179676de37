"""A vault makes of a shard the part that the rank itself would have written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.node.vault.seals import Bytes
from holdfast.trainer.checkpoint.layout.manifest import CheckpointPart, ValueEntry
from holdfast.trainer.checkpoint.layout.manifest_checks import decode_index
from holdfast.trainer.checkpoint.layout.part_format import PartWriter, plan_part
from holdfast.trainer.checkpoint.layout.recipe import PIECE_BYTES, SealedPart, recipe_of
from holdfast.trainer.checkpoint.layout.state_marks import KeyedState, PerRank, PerShard, RngState
from holdfast.trainer.vault_client import shard_layout


@pytest.fixture(autouse=True)
def _four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


class Loader:
    """Something with a state of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": 2,
            "order": [3, 1, 2],
            "by_number": {0: "a"},
            "raw": b"\x00\x01",
            "nothing": {},
            "pair": (1, 2),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


def state(replica: int) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(30)).sum().backward()
    optimizer.step()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {
        "model": PerShard(model, shard="pp=1", replica=replica),
        "optimizer": PerShard(optimizer, shard="pp=1", replica=replica),
        "rng": PerRank(RngState()),
        "loader": Loader(),
        "spread": [DTensor.from_local(torch.ones(3, 6), mesh, [Replicate(), Shard(1)])],
        "step": 7,
        "large": PerRank(Tensors(turned=torch.randn(3000, 700).t(), tied=[model[0].weight, torch.empty(0)])),
    }


class Tensors:
    def __init__(self, **tensors: Any) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Any]:
        return self._tensors

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


def shard_of(keyed: KeyedState) -> tuple[bytes, bytes, Bytes]:
    """What the vault holds of it."""
    kept = keyed.state_dict()
    leaves, objects = shard_layout.take_apart(kept)
    whole = [leaf._replace(tensor=leaf.tensor.detach().contiguous()) for leaf in leaves]
    places = [shard_layout.place(leaf, leaf.tensor.data_ptr() if leaf.tensor.nbytes else 0) for leaf in whole]
    plan = keyed.part_plan(plan_part(kept, keyed.writes))
    index, pieces, nbytes = shard_layout.lay(places, plan)
    memory = np.full(nbytes, 0xEE, np.uint8)
    tensors = {leaf.tensor.data_ptr(): leaf.tensor for leaf in whole}
    for address, size, offset in pieces:
        memory[offset : offset + size] = tensors[address].reshape(-1).view(torch.uint8).numpy()
    return index, objects, memory


def entries(
    part: bytes, index_offset: int, index_crc32: int
) -> dict[tuple[str, tuple[int, ...]], tuple[ValueEntry, bytes]]:
    """By key and place, what a part has."""
    told = CheckpointPart(name="", size=len(part), index_offset=index_offset, index_crc32=index_crc32, holds=())
    found = decode_index(told, part[index_offset:])
    return {
        (it.key, it.chunk_offset): (
            ValueEntry(it.key, it.path, it.dtype, it.shape, it.chunk_offset, it.chunk_shape, 0, it.nbytes, it.crc32),
            part[it.offset : it.offset + it.nbytes],
        )
        for it in found
    }


@pytest.mark.parametrize(("rank", "replica"), [(0, 0), (1, 0), (1, 1)])
def test_the_part_is_the_one_that_the_rank_would_write(rank: int, replica: int) -> None:
    keyed = KeyedState(state(replica), rank)
    writer = PartWriter(keyed.state_dict(), keyed.writes)
    written = b"".join(writer.chunks())
    index, objects, memory = shard_of(keyed)
    recipe = recipe_of(index)
    assert recipe is not None
    sealed = SealedPart(recipe, objects, memory)
    pieces = list(sealed.chunks())
    made = b"".join(pieces)
    assert max(map(len, pieces)) <= PIECE_BYTES
    record = sealed.record("it", len(made))
    expected = entries(written, writer.index_offset, writer.index_crc32)
    assert expected
    assert entries(made, record.index_offset, record.index_crc32) == expected
    assert record.holds == tuple(sorted({keyed.space_of(key) for key in writer.keys}))


def test_a_shard_that_no_checkpointer_kept_has_no_part() -> None:
    index, _, _ = shard_layout.lay(())
    assert recipe_of(index) is None
