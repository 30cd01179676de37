"""The files of one save, as they lie in memory beside their tensors, and the choice between memory and disk."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec


class DiskState(msgspec.Struct, frozen=True, array_like=True):
    """A regular file at one moment. If it is equal later, the file was neither written to nor replaced."""

    inode: int
    nbytes: int
    mtime_ns: int


class Kind(Enum):
    TORCH = "torch"
    """An archive as `torch.save` writes it, made of records."""
    RAW = "raw"
    """The bytes of its only record."""


class FileRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record, in the order of the file: the tensor of this number, or `data` if that is -1."""

    name: str
    tensor: int = -1
    data: bytes = b""


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a script saved, as it lies in memory until it is on the disk."""

    path: str
    """Absolute, without links."""
    kind: Kind
    records: tuple[FileRecord, ...]
    nbytes: int
    """Size of all records together."""
    before: DiskState | None
    """State of the path when the file was saved; None: no file was there."""
    mode: int | None = None
    """Rights of the file that was there."""
    is_named: bool = True
    """An archive has the name of its file inside; False: it has torch's name for streams."""
    after: tuple[str, ...] = ()
    """Files of other ranks that must be on the disk first, because this one declares them complete."""


class Saves(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one save of a rank."""

    files: tuple[SavedFile, ...]
    saved_at_ns: int


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The last save of a rank that was answered from memory, as a file on the disk remembers it."""

    generation: int
    step: int
    """The number of the save."""
    world_size: int
    saved_at_ns: int
    files: dict[str, DiskState | None]
    """Each path with what was there before."""
    is_written: bool = False

    @property
    def age(self) -> tuple[int, int]:
        return self.generation, self.step


class Verdict(Enum):
    WRITE = "memory has what the disk has not"
    WRITTEN = "it has reached the disk"
    REMOVED = "it was removed since"
    CHANGED = "the disk has it, or a later one"


def verdict(before: DiskState | None, now: DiskState | None, *, is_written: bool) -> Verdict:
    """Return what is to be done with a file in memory, given the disk before the save and now.

    Whatever anyone has done to the path since the save wins, for the rank itself waits for the disk before it does
    anything there.
    """
    if is_written:
        return Verdict.WRITTEN
    if now == before:
        return Verdict.WRITE
    return Verdict.REMOVED if now is None else Verdict.CHANGED


class Recovery(NamedTuple):
    """`writes`: the save in memory has not reached the disk, as far as the journal knows. `lost` are paths of a save
    that is neither in memory nor known to be on the disk.
    """

    writes: bool = False
    lost: tuple[str, ...] = ()


def recovery(in_memory: tuple[int, int] | None, journal: JournalEntry | None) -> Recovery:
    """Compare the newest save in memory, as (generation, step), with the last that was answered."""
    if journal is None or (in_memory is not None and in_memory > journal.age):
        # It was sealed, and its rank ended before it could note that.
        return Recovery(writes=in_memory is not None)
    if journal.is_written:
        return Recovery()
    if in_memory == journal.age:
        return Recovery(writes=True)
    return Recovery(lost=tuple(journal.files))


def lost_paths(before: Mapping[str, DiskState | None], now: Mapping[str, DiskState | None]) -> list[str]:
    """Return the paths that are as they were before the save: the others reached the disk, or were changed since."""
    return [path for path in before if now.get(path) == before[path]]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Saves).decode
encode_journal = msgspec.json.Encoder().encode
decode_journal = msgspec.json.Decoder(JournalEntry).decode
