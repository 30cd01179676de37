"""The records of what `torch.save` writes: taken from its own pickling, and written later by its own writer.

So the file is byte for byte what `torch.save` would have written.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import torch

from holdfast.trainer.write_behind.saved_files import FileRecord

INLINE_BYTES_MAX = 1 << 16
"""A larger record travels as a tensor: a message to the vault has a limit."""


class NotDeferrable(Exception):
    """The save has something that cannot be written later; the message names it."""


class Collected(NamedTuple):
    records: tuple[FileRecord, ...]
    tensors: tuple[torch.Tensor, ...]
    """Bytes in the memory of this process, also those of the script's own tensors."""
    nbytes: int


class _Collector:
    """Takes the place of torch's writer of archives."""

    def __init__(self) -> None:
        self.records: list[FileRecord] = []
        self.tensors: list[torch.Tensor] = []
        self.nbytes = 0

    def write_record(self, name: str, data: Any, nbytes: int) -> None:
        self.nbytes += nbytes
        if isinstance(data, str):
            data = data.encode()
        if isinstance(data, bytes) and len(data) <= INLINE_BYTES_MAX:
            self.records.append(FileRecord(name, data=data))
            return
        if not nbytes:
            self.records.append(FileRecord(name))
            return
        self.records.append(FileRecord(name, tensor=len(self.tensors)))
        self.tensors.append(_bytes_of(data, nbytes))

    def write_record_metadata(self, name: str, nbytes: int) -> None:
        raise NotDeferrable("torch.serialization.skip_data is in effect")


def collect(obj: object, protocol: int, *, no_byteorder: bool) -> Collected:
    """Pickle the object as `torch.save` does. Raises NotDeferrable, and whatever the pickling of the object raises."""
    collector = _Collector()
    save: Any = torch.serialization._save
    save(obj, collector, pickle, protocol, no_byteorder)
    return Collected(tuple(collector.records), tuple(collector.tensors), collector.nbytes)


def write(
    path: str, records: tuple[FileRecord, ...], tensors: Sequence[torch.Tensor], *, is_named: bool = True
) -> None:
    """Write the archive. The last part of the path must be that of the file which it is to be, if torch notes it."""
    if is_named:
        _write(path, records, tensors)
    else:
        with open(path, "wb") as stream:
            _write(stream, records, tensors)


def _write(place: str | IO[bytes], records: tuple[FileRecord, ...], tensors: Sequence[torch.Tensor]) -> None:
    writer: Any = torch.serialization._open_zipfile_writer(place)
    with writer as archive:
        for record in records:
            if record.tensor >= 0:
                storage = tensors[record.tensor].untyped_storage()
                archive.write_record(record.name, storage, storage.nbytes())
            else:
                archive.write_record(record.name, record.data, len(record.data))


def write_raw(path: str, records: tuple[FileRecord, ...], tensors: Sequence[torch.Tensor]) -> None:
    """Write the bytes of the records one after the other."""
    with open(path, "wb") as file:
        for record in records:
            if record.tensor >= 0:
                file.write(tensors[record.tensor].numpy().data)
            else:
                file.write(record.data)


def _bytes_of(data: Any, nbytes: int) -> torch.Tensor:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if not isinstance(data, torch.UntypedStorage) or data.device.type != "cpu":
        raise NotDeferrable(f"a record is a {type(data).__name__}")
    found = torch.empty(0, dtype=torch.uint8).set_(data)
    if found.nbytes != nbytes:
        raise NotDeferrable("a record is a part of a storage")
    return found
