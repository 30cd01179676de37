"""Records from a vault to its successor, and the inheritance that they add up to when the vault ends.

The vault sends every change of its shelves. Before it overwrites a shard, it marks the file with the shard's notes,
which the successor shares. So the successor has what the vault had sealed, wherever the vault was when it ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.node.vault.messages import Assign, SealedStep, Serve, ShardName
from holdfast.node.vault.seals import is_seal_of
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import SealedContents

log = structlog.get_logger(__name__)


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Serving(_Record, frozen=True, kw_only=True, tag="serving"):
    """The vault serves its node. One that ends before would end again: it gets no successor."""


class Deposit(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed shard, and the number by which a shelf's record refers to it."""

    number: int
    nbytes: int


class Deposits(_Record, frozen=True, kw_only=True, tag="deposits"):
    """New shards, at most `DEPOSITS_MAX`, first in their message.

    Two descriptors come with each: its memory, and a file with its `Notes`. The vault marks that file before it
    overwrites the shard (`withdraw`).
    """

    deposits: tuple[Deposit, ...]


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """All of a shard but its data. It may be more than a message holds."""

    contents: SealedContents
    absent: tuple[int, ...] = ()


class ShelfRecord(_Record, frozen=True, kw_only=True, tag="shelf"):
    """All that a shelf has from now on; `deposits` by number."""

    name: ShardName
    deposits: tuple[int, ...]
    cut: Cut | None = None
    sent: tuple[SealedStep, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.deposits and self.cut is None


class Ended(_Record, frozen=True, kw_only=True, tag="ended"):
    """The vault ends in order, and its successor with it."""


Record = Serving | Deposits | ShelfRecord | Assign | Serve | Ended

records: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[Record])
"""Decoder of one message."""
DEPOSITS_MAX = 64
"""The kernel passes 253 descriptors with a message."""
_notes = msgspec.msgpack.Decoder(Notes)


_WITHDRAWN = b"\0"
"""First byte of notes that are withdrawn: no others begin with it."""


def withdraw(notes: int) -> None:
    """Mark a file of notes: its shard is about to be overwritten.

    A rank waits meanwhile. To cut the file off takes longer: the kernel gives memory back then.
    """
    os.pwrite(notes, _WITHDRAWN, 0)


class InheritedShard(NamedTuple):
    """A shard whose notes match its seal; its data are yet to be compared."""

    descriptor: int
    nbytes: int
    absent: frozenset[int]
    contents: SealedContents


class InheritedShelf(NamedTuple):
    name: ShardName
    cut: Cut | None
    sent: tuple[SealedStep, ...]
    shards: list[InheritedShard]


class _Kept(NamedTuple):
    deposit: Deposit
    memory: int
    notes: int

    def close(self) -> None:
        os.close(self.memory)
        os.close(self.notes)


class Inheritance:
    """The state of a vault, as its records add up to it."""

    def __init__(self) -> None:
        self.assigned: Assign | None = None
        self.serves: Serve | None = None
        self.is_served = False
        self._kept: dict[int, _Kept] = {}
        self._shelves: dict[ShardName, ShelfRecord] = {}

    def take(self, some: Iterable[Record], descriptors: Sequence[int]) -> None:
        """Take in the records of a message, and the descriptors that came with it."""
        for record in some:
            match record:
                case Deposits(deposits=deposits) if len(descriptors) == 2 * len(deposits):
                    for deposit, memory, notes in zip(deposits, descriptors[::2], descriptors[1::2], strict=True):
                        self._kept[deposit.number] = _Kept(deposit, memory, notes)
                    descriptors = ()
                case ShelfRecord():
                    self._replace(record)
                case Assign():
                    self.assigned = record
                case Serve():
                    self.serves = record
                case Serving():
                    self.is_served = True
                case _:
                    pass
        close_all(descriptors)

    def shelves(self) -> Iterator[InheritedShelf]:
        """Yield each shelf once; the descriptors are the caller's from then on."""
        while self._shelves:
            name, record = self._shelves.popitem()
            kept = [self._kept.pop(number) for number in record.deposits if number in self._kept]
            shards = [shard for each in kept if (shard := _opened(name, each)) is not None]
            yield InheritedShelf(name, record.cut, record.sent, shards)

    def close(self) -> None:
        """Give back what is left of it."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        self._shelves.clear()

    def _replace(self, record: ShelfRecord) -> None:
        before = self._shelves.pop(record.name, None)
        for number in {*(before.deposits if before else ())} - {*record.deposits}:
            if (kept := self._kept.pop(number, None)) is not None:
                kept.close()
        if not record.is_empty:
            self._shelves[record.name] = record


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _opened(name: ShardName, kept: _Kept) -> InheritedShard | None:
    deposit, memory, file = kept
    written = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    if written.startswith(_WITHDRAWN):
        os.close(memory)
        return None
    reason = "its notes fail their checksum"
    try:
        notes = _notes.decode(written)
        contents = notes.contents
        is_whole = contents.seal.nbytes == deposit.nbytes <= os.fstat(memory).st_size
        if is_whole and is_seal_of(contents.seal, contents.index, contents.objects):
            return InheritedShard(memory, deposit.nbytes, frozenset(notes.absent), contents)
    except UNREADABLE as error:
        reason = str(error)
    os.close(memory)
    log.error("a shard of the previous vault is not taken over", of=str(name), reason=reason)
    return None
