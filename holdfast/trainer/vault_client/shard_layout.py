"""The layout of a state in a shard: tensors one after the other, described by an index, and the rest as bytes.

Tensors are never pickled, and neither is a leaf that is bytes. Every other value (numbers, strings, the state of random
generators) is, each by itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec
import torch
from torch.distributed.tensor import DTensor

from holdfast.node.vault.seals import Bytes
from holdfast.trainer.checkpoint.layout.dtensors import DPart, KeyPath, Spread, leaves, local_of, spread_of
from holdfast.trainer.checkpoint.layout.manifest_checks import DIMENSIONS_MAX, ITEM_BYTES, PACKED_ITEM_BYTES
from holdfast.trainer.checkpoint.layout.part_format import set_element
from holdfast.trainer.checkpoint.layout.recipe import (
    ObjectKind,
    PartPlan,
    Recipe,
    RecipeRow,
    StateObject,
    decode_objects,
)

ALIGNMENT = 64
_USUAL_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_USUAL_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64})
_NOT_COPIED = frozenset(
    getattr(torch, name) for bits in range(1, 8) for name in (f"int{bits}", f"uint{bits}") if hasattr(torch, name)
)
"""Dtypes of single bits, which no operator of torch's copies; each element takes a byte."""


class NotKeepable(ValueError):
    """The state has something that this layout has no place for; the message names it and its place."""


class Leaf(NamedTuple):
    """A tensor of a state; `spread` if it is part of a DTensor. `memory` is equal for tensors that are the same memory
    read in the same way, as tied weights are.
    """

    path: KeyPath
    tensor: torch.Tensor
    memory: Hashable
    spread: Spread | None


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the state, and where it lies now. Equal places mean that the vault knows them already."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int
    spread: Spread | None


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """Place of one tensor in a shard: `offset` in bytes, elements in row-major order."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    offset: int
    spread: Spread | None = None
    is_on_device: bool = False
    """True if the tensor lay on an accelerator when it was kept."""


class _Index(msgspec.Struct, frozen=True, array_like=True):
    entries: tuple[ShardEntry, ...]
    recipe: Recipe | None = None


_index = msgspec.msgpack.Decoder(_Index)
_PLAIN = frozenset({int, float, bool, str, type(None)})


def take_apart(state: dict[str, Any]) -> tuple[list[Leaf], bytes]:
    """Return the tensors of a nested state, and everything else as bytes.

    Raises NotKeepable if there is a DTensor where only whole values are kept, or a tensor whose elements do not lie in
    memory as numbers one by one.
    """
    tensors: list[Leaf] = []
    objects: list[StateObject] = []
    for path, value in leaves(state):
        if isinstance(value, DTensor):
            tensors.append(_leaf(path, local_of(value), spread_of(value)))
        elif isinstance(value, torch.Tensor):
            tensors.append(_leaf(path, value, None))
        elif type(value) is bytes:
            objects.append(StateObject(path, ObjectKind.BYTES, value))
        elif value == {} and type(value) is dict:
            objects.append(StateObject(path, ObjectKind.EMPTY))
        else:
            objects.append(StateObject(path, ObjectKind.PICKLED, _pickled(value)))
    return tensors, msgspec.msgpack.encode(objects)


def _leaf(path: KeyPath, tensor: torch.Tensor, spread: Spread | None) -> Leaf:
    if not _is_usual(tensor) and (what := _unlike_others(tensor)):
        raise NotKeepable(f"{'.'.join(map(str, path))} is {what}: such a tensor is not kept, take it out of the state")
    where = tensor.data_ptr() if tensor.nbytes else 0
    memory = where, tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return Leaf(path, tensor, memory, spread)


def _is_usual(tensor: torch.Tensor) -> bool:
    """Return True for what `_unlike_others` would pass, in half the time: each save asks for each tensor."""
    is_of_usual_kind = type(tensor) in _USUAL_TYPES and tensor.dtype in _USUAL_DTYPES
    return is_of_usual_kind and tensor.layout is torch.strided and not tensor.is_nested and tensor.data_ptr() != 0


def _unlike_others(tensor: torch.Tensor) -> str:
    """Return what kind of tensor it is if its elements do not lie in memory as numbers one by one; "": they do."""
    if torch.nn.parameter.is_lazy(tensor):
        return "a parameter that has no shape yet"
    if tensor.is_meta:
        return "a tensor without data (device meta)"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"a tensor of layout {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return "a quantized tensor"
    dtype = _name_of(tensor.dtype)
    if dtype not in ITEM_BYTES and dtype not in PACKED_ITEM_BYTES:
        return f"a tensor of {dtype}"
    try:
        has_memory = tensor.data_ptr() != 0 or not tensor.nbytes
    except RuntimeError:
        has_memory = False
    return "" if has_memory else f"a {type(tensor).__name__}, which has no memory of its own"


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def place(leaf: Leaf, address: int) -> TensorPlace:
    tensor = leaf.tensor
    return TensorPlace(leaf.path, _name_of(tensor.dtype), tuple(tensor.shape), tensor.nbytes, address, leaf.spread)


def lay(
    places: Sequence[TensorPlace], plan: PartPlan | None = None
) -> tuple[bytes, tuple[tuple[int, int, int], ...], int]:
    """Return index, pieces (address, bytes, offset) and size of a shard of these tensors, the same memory once.

    With a plan the index also describes how the shard becomes a part of a checkpoint on disk.
    """
    offsets: dict[tuple[int, int], int] = {}
    end = 0
    for it in places:
        memory = it.address, it.nbytes
        if memory not in offsets:
            offsets[memory] = end
            end += aligned(it.nbytes)
    pieces = tuple((address, nbytes, offset) for (address, nbytes), offset in offsets.items() if nbytes)
    entries = [ShardEntry(it.path, it.dtype, it.shape, offsets[it.address, it.nbytes], it.spread) for it in places]
    return describe(entries, [it.nbytes for it in places], plan), pieces, end


def describe(entries: Sequence[ShardEntry], sizes: Sequence[int], plan: PartPlan | None) -> bytes:
    """Return the index of a shard with these tensors, of these sizes in bytes."""
    recipe = _recipe(plan, {it.path: (it.offset, nbytes) for it, nbytes in zip(entries, sizes, strict=True)})
    return msgspec.msgpack.encode(_Index(tuple(entries), recipe))


def entries_of(index: bytes) -> tuple[ShardEntry, ...]:
    """Return the tensors of a shard."""
    return _index.decode(index).entries


def _recipe(plan: PartPlan | None, there: dict[KeyPath, tuple[int, int]]) -> Recipe | None:
    if plan is None:
        return None
    rows = tuple(RecipeRow(path, chunk, *there[path]) for path, chunk in plan.chunks.items())
    return Recipe(rows, plan.spaces, plan.objects_of)


class OnDevice(NamedTuple):
    """The bytes of a shard from `base` on, in an accelerator's memory."""

    base: int
    memory: torch.Tensor


def put_together(index: bytes, objects: bytes, memory: Bytes, on_device: OnDevice | None = None) -> dict[str, Any]:
    """Return the state that was taken apart: tensors are views of `memory`, of DTensors there are this rank's parts.

    Those that lay on an accelerator are views of `on_device`, if there is one.
    """
    state: dict[str, Any] = {}
    for entry in _index.decode(index).entries:
        nbytes = _nbytes_of(entry, memory.size)
        dtype = getattr(torch, entry.dtype)
        if entry.is_on_device and on_device is not None:
            begin = entry.offset - on_device.base
            tensor = on_device.memory[begin : begin + nbytes].view(dtype).view(entry.shape)
        else:
            tensor = view(memory[entry.offset : entry.offset + nbytes], dtype, entry.shape)
        set_element(state, entry.path, tensor if entry.spread is None else DPart(tensor, entry.spread))
    for it in decode_objects(objects):
        set_element(state, it.path, _value(it))
    return state


def _nbytes_of(entry: ShardEntry, shard_bytes: int) -> int:
    """Return the bytes of a tensor; raise ValueError if a shard of this size has no such tensor."""
    itemsize = ITEM_BYTES.get(entry.dtype) or PACKED_ITEM_BYTES.get(entry.dtype)
    if itemsize is None or min(entry.shape, default=0) < 0 or len(entry.shape) > DIMENSIONS_MAX:
        raise ValueError(f"{entry.path}: there is no tensor of {entry.dtype!r} and shape {entry.shape}")
    nbytes = prod(entry.shape) * itemsize
    if entry.offset < 0 or entry.offset + nbytes > shard_bytes:
        raise ValueError(f"{entry.path}: {nbytes} bytes from {entry.offset} on are not in a shard of {shard_bytes}")
    return nbytes


def _value(kept: StateObject) -> Any:
    match kept.kind:
        case ObjectKind.BYTES:
            return kept.data
        case ObjectKind.EMPTY:
            return {}
        case ObjectKind.PICKLED:
            return pickle.loads(kept.data)


def view(memory: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not memory.size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor that torch can copy."""
    return tensor.view(torch.uint8) if tensor.dtype in _NOT_COPIED else tensor


def aligned(nbytes: int) -> int:
    """Return the bytes that a tensor of this size takes in a shard."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pickled(value: Any) -> bytes:
    if type(value) in _PLAIN:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # It would bring a mesh of the process before along.
        if isinstance(obj, DTensor):
            raise NotKeepable("a DTensor lies in a tuple, or in a dict whose keys are no strings: keep it in neither")
        return NotImplemented
