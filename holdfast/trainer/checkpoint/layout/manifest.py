"""The manifest of a checkpoint, and the index at the end of each of its parts.

Nothing here needs torch, so that a command can list and verify checkpoints in the time that importing torch takes.
"""

from __future__ import annotations

import zlib

import msgspec

from holdfast.trainer.checkpoint.errors import DamagedCheckpoint

MANIFEST = "manifest.json"
FORMAT = 2
UNSUMMED_FORMAT = 1
"""Manifests of this format have no checksum of their own."""
_CHECKSUM = b',"crc32":'

ALIGNMENT = 64
"""Bytes. Tensors are read as views into the file's bytes, so each must start at a multiple of its element size."""

OBJECT = "object"


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a checkpoint: data, then an index of ``size - index_offset`` bytes, covered by ``index_crc32``.

    The index holds a CRC-32 of every entry, so a reader that needs a slice checks what it reads and nothing else.
    """

    name: str
    size: int
    index_offset: int
    index_crc32: int
    holds: tuple[str, ...]
    """The key spaces with entries in this part: "" for global keys, "shard/pp=0", "rank/3"."""


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Written last: without it there is no checkpoint."""

    format: int = FORMAT
    step: int
    generation: int
    world_size: int
    mesh: dict[str, int]
    created_at: float
    """Seconds since the epoch."""
    parts: tuple[CheckpointPart, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.size for part in self.parts)


class ValueEntry(msgspec.Struct, frozen=True, array_like=True):
    """Place of one value of the state in its part. ``dtype`` is "object" for anything but a tensor (pickled)."""

    key: str
    """First key of the state, such as "model", after its key space."""
    path: tuple[str | int, ...]
    """Keys below `key`."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the whole tensor, in elements."""
    chunk_offset: tuple[int, ...]
    """Offset of this part in the whole tensor, in elements of each dimension."""
    chunk_shape: tuple[int, ...]
    """Shape of this part, in elements."""
    offset: int
    """Bytes from the beginning of the file."""
    nbytes: int
    crc32: int


_manifest = msgspec.json.Decoder(CheckpointManifest)
decode_part = msgspec.json.Decoder(CheckpointPart).decode
decode_entries = msgspec.json.Decoder(tuple[ValueEntry, ...]).decode


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    """Return the manifest as JSON whose last field is the checksum of all bytes before it."""
    body = msgspec.json.encode(manifest).removesuffix(b"}")
    return body + _CHECKSUM + str(zlib.crc32(body)).encode() + b"}"


def decode_manifest(record: bytes) -> CheckpointManifest:
    """Return the manifest. Raises msgspec.DecodeError, DamagedCheckpoint: it is not as it was written."""
    body, marker, checksum = record.rpartition(_CHECKSUM)
    if marker and checksum != str(zlib.crc32(body)).encode() + b"}":
        raise DamagedCheckpoint("it fails its checksum")
    manifest = _manifest.decode(record)
    if not marker and manifest.format == FORMAT:
        raise DamagedCheckpoint("its checksum is missing")
    return manifest


class PartLayout:
    """Keeps the index of a part while it is written from its beginning to its end."""

    def __init__(self) -> None:
        self._entries: list[ValueEntry] = []
        self.index_offset = 0
        """Bytes written so far: where the index begins, once everything is added."""
        self.index_crc32 = 0

    def add(
        self,
        key: str,
        path: tuple[str | int, ...],
        data: memoryview | bytes,
        *,
        dtype: str = OBJECT,
        shape: tuple[int, ...] = (),
        chunk_offset: tuple[int, ...] = (),
        chunk_shape: tuple[int, ...] = (),
    ) -> bytes:
        """Enter `data`, which the caller writes next. Return the padding that has to follow it."""
        nbytes, crc32 = memoryview(data).nbytes, zlib.crc32(data)
        return self.note(
            key, path, nbytes, crc32, dtype=dtype, shape=shape, chunk_offset=chunk_offset, chunk_shape=chunk_shape
        )

    def note(
        self,
        key: str,
        path: tuple[str | int, ...],
        nbytes: int,
        crc32: int,
        *,
        dtype: str,
        shape: tuple[int, ...],
        chunk_offset: tuple[int, ...],
        chunk_shape: tuple[int, ...],
    ) -> bytes:
        """Enter data of which only size and checksum are at hand, as `add` does."""
        offset = self.index_offset
        self._entries.append(ValueEntry(key, path, dtype, shape, chunk_offset, chunk_shape, offset, nbytes, crc32))
        padding = bytes(-nbytes % ALIGNMENT)
        self.index_offset += nbytes + len(padding)
        return padding

    def index(self) -> bytes:
        """Return the part's last bytes, once everything is added."""
        index = msgspec.json.encode(self._entries)
        self.index_crc32 = zlib.crc32(index)
        return index
