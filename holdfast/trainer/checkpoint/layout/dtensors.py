"""DTensors taken apart and laid out again: what a rank holds of one, and how the whole lies over the mesh.

The mesh itself cannot outlive the process, for it is made of process groups. What is kept of it is only compared: a
part goes back over a live mesh in which this rank has the same place, or nowhere. No rank asks another for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from holdfast.trainer.checkpoint.errors import CheckpointMismatch

KeyPath = tuple[str | int, ...]


class Over(msgspec.Struct, frozen=True, array_like=True):
    """A mesh and how a tensor lies over it. `placements` as torch writes them; `coordinate` is this rank's place."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinate: tuple[int, ...] | None
    placements: tuple[str, ...]

    def __str__(self) -> str:
        names = self.dims or ("",) * len(self.sizes)
        mesh = ",".join(f"{name}={size}" if name else str(size) for name, size in zip(names, self.sizes, strict=True))
        return f"{' '.join(self.placements)} over {mesh}, here {self.coordinate}"


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """The whole of which a rank holds a part."""

    shape: tuple[int, ...]
    over: Over

    def __str__(self) -> str:
        return f"{self.shape} as {self.over}"


@dataclass(frozen=True)
class DPart:
    local: torch.Tensor
    spread: Spread


def spread_of(tensor: DTensor) -> Spread:
    """Return the placement of a DTensor."""
    return _spread(tensor.shape, tensor.device_mesh, tuple(tensor.placements))


def local_of(tensor: DTensor) -> torch.Tensor:
    """Return this rank's part of a DTensor: the memory itself, without communication."""
    with torch.no_grad():
        local = tensor.to_local()
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


# A state has far fewer of these than tensors, and is asked for all of them at every step.
@lru_cache(maxsize=65_536)
def _spread(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Spread:
    coordinate = mesh.get_coordinate()
    over = Over(
        dims=tuple(mesh.mesh_dim_names or ()),
        sizes=tuple(mesh.shape),
        coordinate=None if coordinate is None else tuple(coordinate),
        placements=tuple(repr(placement) for placement in placements),
    )
    return Spread(tuple(shape), over)


def laid_out(kept: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Return the kept state with its parts made DTensors again, over the meshes of the live state's DTensors.

    An optimizer that has not stepped yet has no moments to compare with: its kept ones take the mesh of any parameter
    that has the same placement. `kept` and `live` are states of a rank by their first keys, such as "model".
    Raises CheckpointMismatch when a part lay otherwise than the job's tensors do now.
    """
    if missing_entries := live.keys() - kept.keys():
        raise CheckpointMismatch(f"{min(missing_entries)} was not kept")
    expected = {path: leaf for path, leaf in leaves(live) if isinstance(leaf, DTensor)}
    examples = {spread_of(tensor).over: tensor for tensor in expected.values()}
    found: set[KeyPath] = set()

    def lay(path: KeyPath, leaf: Any) -> Any:
        found.add(path)
        there = expected.get(path)
        if not isinstance(leaf, DPart):
            if there is not None:
                raise CheckpointMismatch(f"{_name(path)} is a DTensor now and was none when it was kept")
            return leaf
        if there is not None and spread_of(there) != leaf.spread:
            raise CheckpointMismatch(f"{_name(path)} was kept as {leaf.spread}, and is now {spread_of(there)}")
        example = there if there is not None else examples.get(leaf.spread.over)
        if example is None:
            raise CheckpointMismatch(f"{_name(path)} was kept as {leaf.spread}: nothing of this job lies so now")
        return part_over(example, leaf)

    whole = _with_leaves(kept, (), lay)
    if missing := expected.keys() - found:
        raise CheckpointMismatch(f"{_name(min(missing, key=str))} was not kept")
    assert isinstance(whole, dict)
    return whole


def part_over(example: DTensor, part: DPart) -> DTensor:
    """Return a part as a DTensor over the mesh and with the placements of the example. Whether all ranks have matching
    parts is not checked here, for that would take a collective.
    """
    shape = torch.Size(part.spread.shape)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        part.local, example.device_mesh, example.placements, run_check=False, shape=shape, stride=stride
    )


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield everything in nested dicts with strings as keys, and in lists that have tensors or dicts, with its path.

    What is empty is a leaf. So is a list of plain values, as in DCP: an optimizer's list of parameters is one value.
    """
    if _is_inner_dict(value):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif _is_inner_list(value):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def _with_leaves(value: Any, path: KeyPath, change: Callable[[KeyPath, Any], Any]) -> Any:
    if _is_inner_dict(value):
        return {key: _with_leaves(item, (*path, key), change) for key, item in value.items()}
    if _is_inner_list(value):
        return [_with_leaves(item, (*path, index), change) for index, item in enumerate(value)]
    return change(path, value)


def _is_inner_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(key, str) for key in value)


def _is_inner_list(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, torch.Tensor | DPart | dict) or _is_inner_list(item) for item in value
    )


def _name(path: KeyPath) -> str:
    return ".".join(map(str, path))
