"""One rank's part of a checkpoint as bytes: the entries of a DCP plan one after the other, then their index.

Planning is torch.distributed.checkpoint's own (so DTensors reshard as everywhere else); only the byte layout is ours,
because DCP's files hold one ``torch.save`` archive per tensor, which takes longer to open than to read. Restoring the
GPT example on 4 ranks and 2 cores takes 61-71 ms with ``dcp.load`` and its files, 15-25 ms this way, checks included.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, TensorWriteData, WriteItem, WriteItemType

from holdfast.trainer.checkpoint.errors import CheckpointMismatch, DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.dtensors import leaves
from holdfast.trainer.checkpoint.layout.manifest import (
    ALIGNMENT,
    OBJECT,
    CheckpointPart,
    PartLayout,
    ValueEntry,
)
from holdfast.trainer.checkpoint.layout.manifest_checks import check_path, decode_index
from holdfast.trainer.checkpoint.layout.recipe import KeyPath, TensorChunk
from holdfast.trainer.checkpoint.storage.directory import Storage


class SavePlanner(DefaultSavePlanner):
    """DCP's planner, with plain pickle for what is no tensor: ``torch.save`` makes a zip archive of every integer.

    Memory and disk share its leaves: DCP's, but a dict whose keys are not strings is one value, restored as it was.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.state_dict, self.mappings = _flat(state_dict)

    def transform_object(self, write_item: WriteItem, object: object) -> object:
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(pickle.dumps(object, protocol=pickle.HIGHEST_PROTOCOL))
        return object


class LoadPlanner(DefaultLoadPlanner):
    """DCP's planner, which also makes room for what the checkpoint has and this process has not made yet: an optimizer
    has no state before its first step, and DCP loads only into tensors that exist.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        if metadata is None:
            raise ValueError("a load plan needs the checkpoint's metadata")
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.state_dict, self.mappings = _flat(state_dict)
        for key in metadata.state_dict_metadata.keys() - self.state_dict.keys():
            value = _room_for(key, metadata.state_dict_metadata[key])
            set_element(state_dict, metadata.planner_data[key], value)
            self.state_dict[key] = value
            self.mappings[key] = metadata.planner_data[key]

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], pickle.load(value))


def set_element(container: Any, path: tuple[str | int, ...], value: object) -> None:
    """Put a value into nested dicts and lists along ``path``, making what is missing: an int is a place in a list.

    Raises ValueError if no state has such a place.
    """
    check_path(path)
    for here, following in pairwise(path):
        missing: dict[str, Any] | list[Any] = [] if isinstance(following, int) else {}
        if isinstance(container, list):
            assert isinstance(here, int)
            container.extend([None] * (here + 1 - len(container)))
            if container[here] is None:
                container[here] = missing
            container = container[here]
        else:
            container = container.setdefault(here, missing)
    last = path[-1]
    if isinstance(container, list):
        assert isinstance(last, int)
        container.extend([None] * (last + 1 - len(container)))
        container[last] = value
    else:
        container[last] = value


class PartWriter:
    """Turns what this rank writes into a stream of bytes, without ever holding a second copy of it all."""

    def __init__(self, state_dict: dict[str, Any], writes: Callable[[WriteItem, Any], bool]) -> None:
        """``writes`` returns True for a planned item and its value if this rank writes it."""
        self._planner = SavePlanner()
        self._planner.set_up_planner(state_dict)
        values = self._planner.state_dict
        self._items = [i for i in self._planner.create_local_plan().items if writes(i, values[i.index.fqn])]
        self.keys = [item.index.fqn for item in self._items]
        self.index_offset = 0
        self.index_crc32 = 0

    def chunks(self) -> Iterator[memoryview | bytes]:
        """Yield the part in order. `index_offset` and `index_crc32` are right once it is exhausted."""
        layout = PartLayout()
        for item in self._items:
            data = _bytes_of(self._planner.resolve_data(item))
            padding = _add(layout, item, self._planner.mappings[item.index.fqn], data)
            yield data
            if padding:
                yield padding
        index = layout.index()
        self.index_offset = layout.index_offset
        self.index_crc32 = layout.index_crc32
        yield index


def plan_part(state_dict: dict[str, Any], writes: Callable[[WriteItem, Any], bool]) -> dict[KeyPath, TensorChunk]:
    """Return the tensors that `PartWriter` would write, by where they are in the state."""
    planner = SavePlanner()
    planner.set_up_planner(state_dict)
    return {
        planner.mappings[item.index.fqn]: TensorChunk(item.index.fqn, **_place_of(item.tensor_data))
        for item in planner.create_local_plan().items
        if item.tensor_data is not None and writes(item, planner.state_dict[item.index.fqn])
    }


class PartReader:
    """The entries of some parts of a checkpoint, checked as they are read."""

    def __init__(
        self, storage: Storage, step: int, parts: Sequence[CheckpointPart], wanted: Callable[[str], bool]
    ) -> None:
        """Read the parts' indexes and keep the entries whose key is ``wanted``. Raises DamagedCheckpoint."""
        self._storage = storage
        self._step = step
        self._stored: dict[MetadataIndex, tuple[str, ValueEntry]] = {}
        self._fetched: dict[MetadataIndex, memoryview] = {}
        for part in parts:
            for entry in _read_index(storage, step, part):
                if wanted(entry.key):
                    self._stored.setdefault(_storage_index(entry), (part.name, entry))

    def metadata(self) -> Metadata:
        keys: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for _, entry in self._stored.values():
            if entry.dtype == OBJECT:
                keys[entry.key] = BytesStorageMetadata()
                continue
            tensor = keys.setdefault(
                entry.key,
                TensorStorageMetadata(TensorProperties(getattr(torch, entry.dtype)), torch.Size(entry.shape), []),
            )
            assert isinstance(tensor, TensorStorageMetadata)
            tensor.chunks.append(ChunkStorageMetadata(torch.Size(entry.chunk_offset), torch.Size(entry.chunk_shape)))
        return Metadata(keys, planner_data={entry.key: entry.path for _, entry in self._stored.values()})

    def fetch(self, items: Sequence[ReadItem]) -> int:
        """Read and check every entry these items need; nothing of the state is touched. Returns the bytes read."""
        needed = {item.storage_index: self._stored[item.storage_index] for item in items}
        nbytes = 0
        for name, run in _runs(needed):
            start = run[0][1].offset
            block = self._storage.read(self._step, name, start, run[-1][1].offset + run[-1][1].nbytes - start)
            nbytes += block.nbytes
            for index, entry in run:
                data = block[entry.offset - start :][: entry.nbytes]
                if zlib.crc32(data) != entry.crc32:
                    raise DamagedCheckpoint(f"step {self._step}, part {name}: {entry.key} fails its checksum")
                self._fetched[index] = data
        return nbytes

    def apply(self, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        for item in items:
            data, (_, entry) = self._fetched[item.storage_index], self._stored[item.storage_index]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data))
                continue
            source = _tensor_of(entry, data)
            for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dim, offset, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)


def _storage_index(entry: ValueEntry) -> MetadataIndex:
    return MetadataIndex(entry.key, None if entry.dtype == OBJECT else torch.Size(entry.chunk_offset))


def _read_index(storage: Storage, step: int, part: CheckpointPart) -> tuple[ValueEntry, ...]:
    index = storage.read(step, part.name, part.index_offset, part.size - part.index_offset)
    try:
        return decode_index(part, index)
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"step {step}, {error}") from error


def _runs(
    needed: dict[MetadataIndex, tuple[str, ValueEntry]],
) -> Iterator[tuple[str, list[tuple[MetadataIndex, ValueEntry]]]]:
    """Group neighbours in a file, to read them at once."""
    run: list[tuple[MetadataIndex, ValueEntry]] = []
    run_name, end = "", 0
    for index, (name, entry) in sorted(needed.items(), key=lambda item: (item[1][0], item[1][1].offset)):
        if run and (name != run_name or entry.offset - end >= ALIGNMENT):
            yield run_name, run
            run = []
        run.append((index, entry))
        run_name, end = name, entry.offset + entry.nbytes
    if run:
        yield run_name, run


def _bytes_of(data: torch.Tensor | io.BytesIO) -> memoryview:
    if isinstance(data, io.BytesIO):
        return data.getbuffer()
    array: np.ndarray[Any, np.dtype[np.uint8]] = data.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.data


def _tensor_of(entry: ValueEntry, data: memoryview) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype)
    if not data.nbytes:
        return torch.empty(entry.chunk_shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(entry.chunk_shape)


def _add(layout: PartLayout, item: WriteItem, path: tuple[str | int, ...], data: memoryview) -> bytes:
    if item.tensor_data is None:
        return layout.add(item.index.fqn, path, data)
    at = _place_of(item.tensor_data)
    return layout.add(
        item.index.fqn,
        path,
        data,
        dtype=at["dtype"],
        shape=at["shape"],
        chunk_offset=at["offsets"],
        chunk_shape=at["sizes"],
    )


def _place_of(tensor: TensorWriteData) -> dict[str, Any]:
    return {
        "dtype": str(tensor.properties.dtype).removeprefix("torch."),
        "shape": tuple(tensor.size),
        "offsets": tuple(tensor.chunk.offsets),
        "sizes": tuple(tensor.chunk.sizes),
    }


def _flat(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, KeyPath]]:
    """Return everything in a nested state by its key, and where it is there. There is nothing in an empty dict."""
    found = {".".join(map(str, path)): (path, value) for path, value in leaves(state_dict)}
    kept = {key: it for key, it in found.items() if not (isinstance(it[1], dict) and not it[1])}
    return {key: value for key, (_, value) in kept.items()}, {key: path for key, (path, _) in kept.items()}


def _room_for(key: str, metadata: TensorStorageMetadata | BytesStorageMetadata) -> torch.Tensor | None:
    if isinstance(metadata, BytesStorageMetadata):
        return None
    if [chunk.sizes for chunk in metadata.chunks] != [metadata.size]:
        raise CheckpointMismatch(
            f"the checkpoint has {key!r} in {len(metadata.chunks)} shards and this process has no tensor for it, so "
            "its sharding is unknown: create the state before restoring it (for an optimizer of DTensors with "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict)"
        )
    return torch.empty(metadata.size, dtype=metadata.properties.dtype)
