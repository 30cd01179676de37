"""The values of one checkpoint, read and checked one at a time: for who has no model to load them into."""

from __future__ import annotations

import math
import pickle
import zlib
from typing import Any, NamedTuple

import torch

from holdfast.trainer.checkpoint.errors import DamagedCheckpoint
from holdfast.trainer.checkpoint.exchange import plain_pickle
from holdfast.trainer.checkpoint.layout.manifest import OBJECT, ValueEntry
from holdfast.trainer.checkpoint.layout.manifest_checks import decode_index
from holdfast.trainer.checkpoint.storage.folder import Folder, whole_manifest

APART = ("shard/", "rank/")
"""Prefixes of the keys of state that belongs to one shard or one rank, see `layout/state_marks.py`."""


class Key(NamedTuple):
    """A key: its space ("" if all ranks share it, "shard/pp=0", "rank/3"), the entry of the state, and the rest."""

    space: str
    entry: str
    rest: str

    @classmethod
    def of(cls, key: str) -> Key:
        root, _, rest = key.partition(".")
        space, _, entry = root.rpartition("/") if root.startswith(APART) else ("", "", root)
        return cls(space, entry, rest)


class Value(NamedTuple):
    """One value and the pieces in which it lies in the parts: a tensor that was sharded has several."""

    key: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[str, ValueEntry], ...]

    @property
    def is_object(self) -> bool:
        return self.dtype == OBJECT

    @property
    def nbytes(self) -> int:
        if self.is_object:
            return self.pieces[0][1].nbytes
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize


class CheckpointContents:
    def __init__(self, folder: Folder, *, trusts: bool = False) -> None:
        """Read the indexes; raise DamagedCheckpoint unless every part is there and every tensor is covered. `trusts`:
        run what its pickles name, as a restore does.
        """
        self._folder = folder
        self._loads = pickle.loads if trusts else plain_pickle.loads
        self.manifest = whole_manifest(folder)
        pieces: dict[str, dict[tuple[int, ...], tuple[str, ValueEntry]]] = {}
        for part in self.manifest.parts:
            index = folder.read(part.name, part.index_offset, part.size - part.index_offset)
            for entry in decode_index(part, index):
                pieces.setdefault(entry.key, {}).setdefault(entry.chunk_offset, (part.name, entry))
        self.values = {key: _value(tuple(found.values())) for key, found in pieces.items()}

    def piece(self, name: str, entry: ValueEntry) -> torch.Tensor:
        """Return one piece of a tensor. Raises DamagedCheckpoint."""
        data = self._checked(name, entry)
        if not data.nbytes:
            return torch.empty(entry.chunk_shape, dtype=torch_dtype(entry.dtype))
        return torch.frombuffer(data, dtype=torch_dtype(entry.dtype)).reshape(entry.chunk_shape)

    def tensor(self, value: Value) -> torch.Tensor:
        """Return a tensor, all of it. Raises DamagedCheckpoint."""
        if len(value.pieces) == 1:
            return self.piece(*value.pieces[0])
        whole = torch.empty(value.shape, dtype=torch_dtype(value.dtype))
        for name, entry in value.pieces:
            target = whole
            for dim, (offset, length) in enumerate(zip(entry.chunk_offset, entry.chunk_shape, strict=True)):
                target = target.narrow(dim, offset, length)
            target.copy_(self.piece(name, entry))
        return whole

    def unpickled(self, value: Value) -> Any:
        """Unpickle a value that is no tensor. Raises RunsCode, DamagedCheckpoint or whatever the pickle raises."""
        return self._loads(self._checked(*value.pieces[0]))

    def _checked(self, name: str, entry: ValueEntry) -> memoryview:
        data = self._folder.read(name, entry.offset, entry.nbytes)
        if zlib.crc32(data) != entry.crc32:
            raise DamagedCheckpoint(f"{self._folder.name}: part {name}: {entry.key} fails its checksum")
        return data


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _value(pieces: tuple[tuple[str, ValueEntry], ...]) -> Value:
    first = pieces[0][1]
    if first.dtype != OBJECT:
        covered = sum(math.prod(entry.chunk_shape) for _, entry in pieces)
        if covered != math.prod(first.shape):
            raise DamagedCheckpoint(
                f"{first.key}: its pieces have {covered} elements, the tensor {math.prod(first.shape)}"
            )
    return Value(first.key, first.path, first.dtype, first.shape, pieces)
