"""How a state lies in a shard: tensors one after the other, described by an index; the rest as bytes beside them.

Tensors are never pickled, and neither is a leaf that is bytes. What else a state has (numbers, strings, the state of
random generators) is, all of it in one piece.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.distributed.tensor import DTensor

from holdfast.seals import Bytes
from holdfast.trainer.checkpoint_format import set_element
from holdfast.trainer.spread import DPart, KeyPath, Spread, leaves, local_of, spread_of

ALIGNMENT = 64


class NotKeepable(ValueError):
    """The state has something that this layout has no place for; the message says what and where."""


class Leaf(NamedTuple):
    """One tensor of a state; `spread` where it is a part of a DTensor.

    `memory` is equal for tensors that are the same memory read in the same way, as tied weights are.
    """

    path: KeyPath
    tensor: torch.Tensor
    memory: Hashable
    spread: Spread | None


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the state, and where it lies now. Equal places mean that the vault knows them already."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int
    spread: Spread | None


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor lies in a shard: `offset` in bytes, elements in row-major order."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    offset: int
    spread: Spread | None = None


class _Objects(msgspec.Struct, frozen=True, array_like=True):
    plain: tuple[tuple[KeyPath, bytes], ...]
    pickled: bytes


_entries = msgspec.msgpack.Decoder(tuple[Entry, ...])
_objects = msgspec.msgpack.Decoder(_Objects)


def take_apart(state: dict[str, Any]) -> tuple[list[Leaf], bytes]:
    """The tensors of a nested state, and everything else as bytes.

    Raises:
        NotKeepable: there is a DTensor where only whole values are kept.
    """
    tensors: list[Leaf] = []
    plain: list[tuple[KeyPath, bytes]] = []
    others: list[tuple[KeyPath, Any]] = []
    for path, value in leaves(state):
        if isinstance(value, DTensor):
            tensors.append(_leaf(path, local_of(value), spread_of(value)))
        elif isinstance(value, torch.Tensor):
            tensors.append(_leaf(path, value, None))
        elif type(value) is bytes:
            plain.append((path, value))
        else:
            others.append((path, value))
    return tensors, msgspec.msgpack.encode(_Objects(tuple(plain), _pickled(others) if others else b""))


def _leaf(path: KeyPath, tensor: torch.Tensor, spread: Spread | None) -> Leaf:
    where = tensor.data_ptr() if tensor.nbytes else 0
    memory = where, tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return Leaf(path, tensor, memory, spread)


def place(leaf: Leaf, address: int) -> Place:
    """`leaf` as it lies at `address`."""
    tensor = leaf.tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Place(leaf.path, dtype, tuple(tensor.shape), tensor.nbytes, address, leaf.spread)


def lay(places: Sequence[Place]) -> tuple[bytes, tuple[tuple[int, int, int], ...], int]:
    """Index, pieces (address, bytes, offset) and size of a shard of these. The same memory is in it once."""
    offsets: dict[tuple[int, int], int] = {}
    entries: list[Entry] = []
    end = 0
    for it in places:
        memory = it.address, it.nbytes
        if memory not in offsets:
            offsets[memory] = end
            end += aligned(it.nbytes)
        entries.append(Entry(it.path, it.dtype, it.shape, offsets[memory], it.spread))
    pieces = tuple((address, nbytes, offset) for (address, nbytes), offset in offsets.items() if nbytes)
    return msgspec.msgpack.encode(entries), pieces, end


def put_together(index: bytes, objects: bytes, memory: Bytes) -> dict[str, Any]:
    """The state that was taken apart: tensors are views of `memory`, of DTensors there are this rank's parts."""
    state: dict[str, Any] = {}
    for entry in _entries.decode(index):
        dtype = getattr(torch, entry.dtype)
        nbytes = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
        tensor = view(memory[entry.offset : entry.offset + nbytes], dtype, entry.shape)
        set_element(state, entry.path, tensor if entry.spread is None else DPart(tensor, entry.spread))
    rest = _objects.decode(objects)
    for path, value in rest.plain:
        set_element(state, path, value)
    for path, value in pickle.loads(rest.pickled) if rest.pickled else ():
        set_element(state, path, value)
    return state


def view(memory: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """These bytes as a tensor."""
    if not memory.size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def aligned(nbytes: int) -> int:
    """What a tensor of this size takes of a shard."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pickled(others: list[tuple[KeyPath, Any]]) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(others)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # It would bring a mesh of the process before along.
        if isinstance(obj, DTensor):
            raise NotKeepable("a DTensor lies in a tuple, or in a dict whose keys are no strings: keep it in neither")
        return NotImplemented
