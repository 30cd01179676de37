"""The index of a torch.distributed.checkpoint save in a rank's vault: chunks of tensors by their place in the whole.

A planner fills a tensor from the chunks that the metadata names. A rank's metadata therefore names the rest of each
tensor too, which is with other ranks: a plan that needs some of it is then seen and refused. Were it left out, the
planner would leave that part of the tensor as it is, without an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem

Numbers = tuple[int, ...]


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A part of a tensor: where it begins in each dimension, and how far it goes."""

    offsets: Numbers
    sizes: Numbers

    @property
    def is_empty(self) -> bool:
        return 0 in self.sizes


class DcpChunk(msgspec.Struct, frozen=True, array_like=True):
    """One tensor that is held: the part `box` of the tensor `key`, which is `shape` as a whole."""

    key: str
    dtype: str
    shape: Numbers
    box: Box


class DcpLayout(msgspec.Struct, frozen=True, array_like=True):
    """All that a rank holds, in order; `paths` has the path of each key, if the planner's data has DCP's usual form."""

    chunks: tuple[DcpChunk, ...]
    objects: tuple[str, ...]
    paths: dict[str, tuple[str | int, ...]]

    def metadata(self) -> Metadata:
        keys: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for key, chunks in self._by_key().items():
            own = [chunk.box for chunk in chunks if not chunk.box.is_empty]
            boxes = [*own, *rest_of(chunks[0].shape, own)]
            keys[key] = TensorStorageMetadata(
                TensorProperties(getattr(torch, chunks[0].dtype)),
                torch.Size(chunks[0].shape),
                [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in boxes],
            )
        keys.update((key, BytesStorageMetadata()) for key in self.objects)
        return Metadata(keys, planner_data=self.paths or None)

    def _by_key(self) -> dict[str, list[DcpChunk]]:
        found: dict[str, list[DcpChunk]] = {}
        for chunk in self.chunks:
            found.setdefault(chunk.key, []).append(chunk)
        return found


_layouts = msgspec.msgpack.Decoder(DcpLayout)
_paths: msgspec.msgpack.Decoder[dict[str, tuple[str | int, ...]]] = msgspec.msgpack.Decoder(
    dict[str, tuple[str | int, ...]]
)


def encode(tensors: Iterable[WriteItem], objects: Iterable[WriteItem], planner_data: Any) -> bytes:
    """Encode the layout of a plan. `planner_data` of other planners than DCP's own is left out."""
    try:
        paths = _paths.decode(msgspec.msgpack.encode(planner_data))
    except (msgspec.MsgspecError, TypeError):
        paths = {}
    chunks = tuple(_chunk(item) for item in tensors)
    return msgspec.msgpack.encode(DcpLayout(chunks, tuple(item.index.fqn for item in objects), paths))


def decode(layout: bytes) -> DcpLayout:
    return _layouts.decode(layout)


def rest_of(shape: Numbers, boxes: Iterable[Box]) -> list[Box]:
    """Return boxes that together are all of a tensor but these."""
    rest = [Box((0,) * len(shape), shape)]
    for box in boxes:
        rest = [piece for whole in rest for piece in _without(whole, box)]
    return [box for box in rest if not box.is_empty]


def _without(whole: Box, box: Box) -> list[Box]:
    """Cut off what lies before and behind `box` in one dimension after the other; what is left in the end is in it."""
    starts = [max(a, b) for a, b in zip(whole.offsets, box.offsets, strict=True)]
    stops = [min(a + n, b + m) for a, n, b, m in zip(whole.offsets, whole.sizes, box.offsets, box.sizes, strict=True)]
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return [whole]
    pieces: list[Box] = []
    offsets, sizes = list(whole.offsets), list(whole.sizes)
    for dim, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        end = offsets[dim] + sizes[dim]
        for first, last in ((offsets[dim], start), (stop, end)):
            if first < last:
                pieces.append(
                    Box((*offsets[:dim], first, *offsets[dim + 1 :]), (*sizes[:dim], last - first, *sizes[dim + 1 :]))
                )
        offsets[dim], sizes[dim] = start, stop - start
    return pieces


def _chunk(item: WriteItem) -> DcpChunk:
    tensor = item.tensor_data
    assert tensor is not None
    return DcpChunk(
        item.index.fqn,
        str(tensor.properties.dtype).removeprefix("torch."),
        tuple(tensor.size),
        Box(tuple(tensor.chunk.offsets), tuple(tensor.chunk.sizes)),
    )
