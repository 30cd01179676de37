"""DTensors taken apart and laid out again, as rank 1 of a job of four; the state that a shard is made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.trainer.checkpoint.errors import CheckpointMismatch
from holdfast.trainer.checkpoint.layout.dtensors import DPart, laid_out, local_of, spread_of
from holdfast.trainer.vault_client import shard_layout
from holdfast.trainer.vault_client.shard_layout import NotKeepable


@pytest.fixture(autouse=True)
def _four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def over(
    *placements: Placement, names: tuple[str, ...] = ("dp", "tp"), ranks: list[list[int]] | None = None
) -> DTensor:
    """A DTensor of 5 x 6 over 2 x 2 ranks, of which this rank has what the placements say."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    if ranks is not None:
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names)
    rows = {Shard(0): 3, Replicate(): 5}[placements[0]]
    columns = {Shard(1): 3, Replicate(): 6}[placements[1]]
    local = torch.arange(rows * columns * 1.0).reshape(rows, columns)
    return DTensor.from_local(local, mesh, placements, shape=torch.Size((5, 6)), stride=(6, 1))


def through_a_shard(state: dict[str, Any]) -> dict[str, Any]:
    """Kept and restored, without a vault between."""
    leaves, objects = shard_layout.take_apart(state)
    places = [shard_layout.place(leaf, leaf.tensor.data_ptr()) for leaf in leaves]
    index, pieces, nbytes = shard_layout.lay(places)
    memory = np.full(nbytes, 0xEE, np.uint8)
    for address, size, offset in pieces:
        (leaf,) = {id(leaf.tensor): leaf for leaf in leaves if leaf.tensor.data_ptr() == address}.values()
        memory[offset : offset + size] = leaf.tensor.reshape(-1).view(torch.uint8).numpy()
    return shard_layout.put_together(index, objects, memory)


def test_a_part_comes_back_as_a_dtensor_over_the_mesh_of_now() -> None:
    kept = through_a_shard({"model": {"weight": over(Shard(0), Shard(1)), "scale": torch.ones(3)}})
    live = {"model": {"weight": over(Shard(0), Shard(1)), "scale": torch.zeros(3)}}
    found = laid_out(kept, live)["model"]
    assert isinstance(found["weight"], DTensor)
    assert spread_of(found["weight"]) == spread_of(live["model"]["weight"])
    assert found["weight"].device_mesh is live["model"]["weight"].device_mesh
    assert torch.equal(local_of(found["weight"]), torch.arange(9.0).reshape(3, 3))
    assert torch.equal(found["scale"], torch.ones(3))


def test_moments_that_are_not_made_yet_lie_as_some_parameter_does() -> None:
    kept = through_a_shard({"weight": over(Shard(0), Shard(1)), "optimizer": {"moment": over(Shard(0), Shard(1))}})
    live = {"weight": over(Shard(0), Shard(1)), "optimizer": {}}
    assert spread_of(laid_out(kept, live)["optimizer"]["moment"]) == spread_of(live["weight"])
    live["weight"] = over(Replicate(), Shard(1))
    del kept["weight"]
    with pytest.raises(CheckpointMismatch, match=r"^weight was not kept"):
        laid_out(kept, live)
    kept["weight"] = through_a_shard(live)["weight"]
    with pytest.raises(CheckpointMismatch, match=r"optimizer.moment was kept as .*: nothing of this job lies so now"):
        laid_out(kept, live)


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda: over(Replicate(), Shard(1)),
        lambda: over(Shard(0), Shard(1), names=("fsdp", "tp")),
        # The same mesh but for the order of its ranks: this one's part is another.
        lambda: over(Shard(0), Shard(1), ranks=[[0, 2], [1, 3]]),
        lambda: torch.zeros(5, 6),
    ],
)
def test_what_lies_otherwise_is_refused_by_name(otherwise: Any) -> None:
    one, other = {"weight": over(Shard(0), Shard(1))}, {"weight": otherwise(), "also": over(Shard(0), Shard(1))}
    with pytest.raises(CheckpointMismatch, match=r"^weight |^also "):
        laid_out(through_a_shard(one), other)
    with pytest.raises(CheckpointMismatch, match=r"^weight "):
        laid_out(through_a_shard(other), {**one, "also": other["also"]})


def test_a_part_keeps_what_it_needs_and_nothing_of_the_mesh() -> None:
    part = through_a_shard({"weight": over(Shard(0), Replicate())})["weight"]
    assert isinstance(part, DPart)
    assert part.spread.shape == (5, 6)
    assert part.local.shape == (3, 6)
    assert str(part.spread) == "(5, 6) as Shard(dim=0) Replicate() over dp=2,tp=2, here (0, 1)"


def test_a_dtensor_where_it_would_be_pickled_is_refused() -> None:
    for state in ({"pair": (1, over(Shard(0), Shard(1)))}, {"state": {0: over(Shard(0), Shard(1))}}):
        with pytest.raises(NotKeepable, match="in a tuple, or in a dict whose keys are no strings"):
            shard_layout.take_apart(state)


def test_tied_weights_are_kept_once_and_views_of_one_memory_each() -> None:
    weight = torch.randn(40, 50)
    state = {"embedding": weight, "head": weight, "first": weight[:20], "turned": weight.T}
    leaves, _ = shard_layout.take_apart(state)
    assert leaves[0].memory == leaves[1].memory
    assert len({leaf.memory for leaf in leaves}) == 3
    tied = through_a_shard({"embedding": weight, "head": weight})
    assert torch.equal(tied["head"], weight)
    assert tied["head"].data_ptr() == tied["embedding"].data_ptr()
    _, _, nbytes = shard_layout.lay([shard_layout.place(leaf, leaf.tensor.data_ptr()) for leaf in leaves[:2]])
    assert nbytes == weight.nbytes


def test_bytes_and_other_values_come_back_and_bytes_alone_are_never_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"record": b"\x00\xff", "deep": [{"more": b""}], "tensor": torch.arange(3)}
    others = {"number": 1.5, "nothing": None, "empty": {}, "pair": (1, "two"), "by_number": {0: torch.ones(2)}}
    found = through_a_shard(copy.copy(others))
    assert {**found, "by_number": None} == {**others, "by_number": None}
    assert torch.equal(found["by_number"][0], torch.ones(2))

    monkeypatch.setattr(shard_layout, "pickle", None)
    found = through_a_shard(plain)
    assert (found["record"], found["deep"]) == (b"\x00\xff", [{"more": b""}])
    assert torch.equal(found["tensor"], torch.arange(3))
