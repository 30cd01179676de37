"""Limits of the numbers in a checkpoint's manifest and indexes: they decide what a reader allocates and reads.

A number may be wrong because the disk damaged it, or because somebody wrote it on purpose; `decode_manifest` has
compared the checksum before, which shows the first only. Nothing here needs torch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from math import prod

from holdfast.decoding import UNREADABLE
from holdfast.trainer.checkpoint.errors import DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import (
    MANIFEST,
    OBJECT,
    CheckpointManifest,
    CheckpointPart,
    ValueEntry,
    decode_entries,
)

STEP_MAX = BYTES_MAX = 1 << 53
PARTS_MAX = 1_000_000
INDEX_BYTES_MAX = 1 << 30
DIMENSIONS_MAX = 64
PLACE_IN_LIST_MAX = 1 << 20
"""A list of a state is made as long as the largest place in it."""

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("complex32", "float32", "int32", "uint32"), 4),
    **dict.fromkeys(("complex64", "float64", "int64", "uint64"), 8),
    "complex128": 16,
}
"""Bytes of an element by dtype."""

PACKED_ITEM_BYTES = {
    **dict.fromkeys((f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)), 1),
    **dict.fromkeys(("bits1x8", "bits2x4", "bits4x2", "bits8", "qint8", "quint8", "quint2x4", "quint4x2"), 1),
    "bits16": 2,
    "qint32": 4,
}
"""Most bytes of an element, for dtypes of which several elements may share a byte."""


def check_manifest(manifest: CheckpointManifest, where: str) -> None:
    """Raise DamagedCheckpoint if the manifest cannot be that of a checkpoint."""
    for problem in _manifest_problems(manifest):
        raise DamagedCheckpoint(f"{where}: {MANIFEST} cannot be right: {problem}")


def check_entries(part: CheckpointPart, entries: Iterable[ValueEntry]) -> None:
    """Raise DamagedCheckpoint if the index cannot be that of the part."""
    end = 0
    for entry in sorted(entries, key=lambda each: (each.offset, each.nbytes)):
        problem = _entry_problem(entry, part.index_offset)
        if not problem and entry.offset < end:
            problem = f"its bytes begin at {entry.offset}, inside of those of another entry"
        if problem:
            raise DamagedCheckpoint(f"part {part.name}: the index cannot be right: {entry.key!r}: {problem}")
        end = entry.offset + entry.nbytes


def decode_index(part: CheckpointPart, index: memoryview | bytes) -> tuple[ValueEntry, ...]:
    """Return the entries of a part, in the order in which they lie there. Raises DamagedCheckpoint."""
    if zlib.crc32(index) != part.index_crc32:
        raise DamagedCheckpoint(f"part {part.name}: the index fails its checksum")
    try:
        entries = decode_entries(index)
    except UNREADABLE as error:
        raise DamagedCheckpoint(f"part {part.name}: the index cannot be read: {error}") from error
    check_entries(part, entries)
    return entries


def check_path(path: Sequence[str | int]) -> None:
    """Raise ValueError if a state has no such place."""
    if not path:
        raise ValueError("its path is empty")
    if any(isinstance(place, int) and not 0 <= place < PLACE_IN_LIST_MAX for place in path):
        raise ValueError(f"the path {path!r} has a place in a list that is not from 0 to {PLACE_IN_LIST_MAX - 1}")


def _manifest_problems(manifest: CheckpointManifest) -> Iterable[str]:
    if not 0 <= manifest.step <= STEP_MAX or not 0 <= manifest.generation <= STEP_MAX:
        yield f"step {manifest.step} of generation {manifest.generation}"
    if not 1 <= manifest.world_size <= PARTS_MAX:
        yield f"it was saved by {manifest.world_size} ranks"
    if not 1 <= len(manifest.parts) <= PARTS_MAX:
        yield f"it has {len(manifest.parts)} parts"
    if len({part.name for part in manifest.parts}) < len(manifest.parts):
        yield "two parts have the same name"
    for part in manifest.parts:
        if not part.name or part.name in (".", "..", MANIFEST) or "/" in part.name or "\0" in part.name:
            yield f"a part cannot be named {part.name!r}"
        if not 0 <= part.index_offset <= part.size <= BYTES_MAX:
            yield f"part {part.name} of {part.size} bytes has its index at {part.index_offset}"
        if part.size - part.index_offset > INDEX_BYTES_MAX:
            yield f"part {part.name} has an index of {part.size - part.index_offset} bytes"


def _entry_problem(entry: ValueEntry, data_bytes: int) -> str:
    if entry.offset < 0 or entry.nbytes < 0 or entry.offset + entry.nbytes > data_bytes:
        return f"it has {entry.nbytes} bytes from {entry.offset} on, in {data_bytes} bytes of data"
    try:
        check_path(entry.path)
    except ValueError as error:
        return str(error)
    return "" if entry.dtype == OBJECT else _tensor_problem(entry)


def _tensor_problem(entry: ValueEntry) -> str:
    shape, offsets, sizes = entry.shape, entry.chunk_offset, entry.chunk_shape
    if not len(shape) == len(offsets) == len(sizes) <= DIMENSIONS_MAX:
        return f"shape {shape} and the piece {offsets} to {sizes} differ in their dimensions, or have too many"
    if any(
        offset < 0 or size < 0 or offset + size > length
        for length, offset, size in zip(shape, offsets, sizes, strict=True)
    ):
        return f"the piece of {sizes} at {offsets} is not inside of shape {shape}"
    return size_problem(entry.dtype, sizes, entry.nbytes)


def size_problem(dtype: str, shape: Sequence[int], nbytes: int) -> str:
    """Return why a tensor of this dtype and shape cannot have this number of bytes; "" if it can."""
    if dtype in PACKED_ITEM_BYTES:
        is_right = nbytes <= prod(shape) * PACKED_ITEM_BYTES[dtype]
    elif dtype in ITEM_BYTES:
        is_right = nbytes == prod(shape) * ITEM_BYTES[dtype]
    else:
        return f"there is no dtype {dtype!r}"
    return "" if is_right else f"{dtype} of shape {tuple(shape)} does not take {nbytes} bytes"
