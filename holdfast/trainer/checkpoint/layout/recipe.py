"""The recipe for writing a shard in memory as a part of a checkpoint on disk: the rank gives it, and its node's vault
follows it.

The same planner decides what each rank writes and under which keys, for either writer (`checkpoint_format.plan_part`),
so what the vault writes is what the rank would have written. The vault needs neither torch nor to unpickle anything.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

from holdfast.node.vault.seals import Bytes
from holdfast.trainer.checkpoint.errors import DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import CheckpointPart, PartLayout

KeyPath = tuple[str | int, ...]

PIECE_BYTES = 4 << 20


class TensorChunk(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that this rank writes, or its part of one."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class PartPlan(msgspec.Struct, frozen=True, array_like=True):
    """A rank's plan of what it writes. `spaces` has the key space of every entry of the state by its key."""

    chunks: dict[KeyPath, TensorChunk]
    spaces: dict[str, str]
    objects_of: tuple[str, ...]
    """The entries whose values that are no tensors are this rank's to write."""


class RecipeRow(msgspec.Struct, frozen=True, array_like=True):
    path: KeyPath
    chunk: TensorChunk
    offset: int
    nbytes: int


class Recipe(msgspec.Struct, frozen=True, array_like=True):
    rows: tuple[RecipeRow, ...]
    spaces: dict[str, str]
    objects_of: tuple[str, ...]


class ObjectKind(IntEnum):
    PICKLED = 0
    BYTES = 1
    EMPTY = 2


class StateObject(msgspec.Struct, frozen=True, array_like=True):
    path: KeyPath
    kind: ObjectKind
    data: bytes = b""


class _RecipeIndex(msgspec.Struct, frozen=True, array_like=True):
    """The part of a shard's index that is needed here; see `holdfast.trainer.vault_client.shard_layout`."""

    entries: msgspec.Raw
    recipe: Recipe | None = None


_index = msgspec.msgpack.Decoder(_RecipeIndex)
decode_objects = msgspec.msgpack.Decoder(tuple[StateObject, ...]).decode


def recipe_of(index: bytes) -> Recipe | None:
    """Return the recipe in a shard's index; None if no Checkpointer saved it, since only that knows the keys."""
    return _index.decode(index).recipe


class SealedPart:
    """A shard as the bytes of a part, without a second copy of it."""

    def __init__(self, recipe: Recipe, objects: bytes, memory: Bytes) -> None:
        self._recipe = recipe
        written = (each for each in decode_objects(objects) if each.path[0] in recipe.objects_of)
        # An empty dict says nothing to a planner, which goes by leaves.
        self._objects: Sequence[StateObject] = [each for each in written if each.kind is not ObjectKind.EMPTY]
        self._memory = memory
        self._layout = PartLayout()

    def chunks(self) -> Iterator[memoryview | bytes]:
        """Yield the part in order, no piece of it larger than `PIECE_BYTES` but an object that is."""
        for row in self._recipe.rows:
            crc32, end = 0, row.offset + row.nbytes
            if not 0 <= row.offset <= end <= self._memory.size:
                raise DamagedCheckpoint(
                    f"{row.chunk.key!r}: bytes {row.offset} to {end} are not in a shard of {self._memory.size}"
                )
            for start in range(row.offset, end, PIECE_BYTES):
                piece = self._memory[start : min(start + PIECE_BYTES, end)].data
                crc32 = zlib.crc32(piece, crc32)
                yield piece
            chunk = row.chunk
            padding = self._layout.note(
                chunk.key,
                row.path,
                row.nbytes,
                crc32,
                dtype=chunk.dtype,
                shape=chunk.shape,
                chunk_offset=chunk.offsets,
                chunk_shape=chunk.sizes,
            )
            if padding:
                yield padding
        for each in self._objects:
            data = pickle.dumps(each.data, pickle.HIGHEST_PROTOCOL) if each.kind is ObjectKind.BYTES else each.data
            padding = self._layout.add(_key(each.path), each.path, data)
            yield data
            if padding:
                yield padding
        yield self._layout.index()

    def record(self, name: str, size: int) -> CheckpointPart:
        """Return the manifest's record of the part, after all of it is written."""
        keys = [row.chunk.key for row in self._recipe.rows] + [_key(each.path) for each in self._objects]
        return CheckpointPart(
            name=name,
            size=size,
            index_offset=self._layout.index_offset,
            index_crc32=self._layout.index_crc32,
            holds=tuple(sorted({self._recipe.spaces[key.partition(".")[0]] for key in keys})),
        )


def part_name(rank: int) -> str:
    return f"rank-{rank:05d}.part"


def _key(path: KeyPath) -> str:
    return ".".join(map(str, path))
