"""What a vault tells its successor, and what the successor has of it when the vault ends.

The vault records every change of its shelves before it acts on it: a step that is about to be overwritten is not the
successor's any more. So what the successor has is what the vault had sealed, wherever the vault was when it ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.node.vault.messages import Assign, SealedStep, ShardName
from holdfast.node.vault.seals import is_seal_of
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import SealedContents

log = structlog.get_logger(__name__)


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Serving(_Record, frozen=True, kw_only=True, tag="serving"):
    """The vault serves its node. One that ends before would end again: it gets no successor."""


class Deposit(_Record, frozen=True, kw_only=True, tag="deposit"):
    """A sealed shard. Two descriptors come with it: its memory, and a file with its `SealedContents`."""

    number: int
    nbytes: int
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


Record = Serving | Deposit | ShelfRecord | Assign | Ended

records: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_contents = msgspec.msgpack.Decoder(SealedContents)


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
    contents: int

    def close(self) -> None:
        os.close(self.memory)
        os.close(self.contents)


class Inheritance:
    """The state of a vault, as far as it has told it."""

    def __init__(self) -> None:
        self.assigned: Assign | None = None
        self.is_served = False
        self._kept: dict[int, _Kept] = {}
        self._shelves: dict[ShardName, ShelfRecord] = {}

    def take(self, record: Record, descriptors: Sequence[int]) -> None:
        """Take a record in, and the descriptors that came with it."""
        match record:
            case Deposit() if len(descriptors) == 2:
                self._kept[record.number] = _Kept(record, *descriptors)
            case ShelfRecord():
                self._replace(record)
            case Assign():
                self.assigned = record
            case Serving():
                self.is_served = True
            case _:
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
    deposit, memory, notes = kept
    try:
        contents = _contents.decode(os.pread(notes, os.fstat(notes).st_size, 0))
        is_whole = contents.seal.nbytes == deposit.nbytes <= os.fstat(memory).st_size
        if is_whole and is_seal_of(contents.seal, contents.index, contents.objects):
            return InheritedShard(memory, deposit.nbytes, frozenset(deposit.absent), contents)
        reason = "its notes fail their checksum"
    except UNREADABLE as error:
        reason = str(error)
    finally:
        os.close(notes)
    os.close(memory)
    log.error("a shard of the vault before is not taken over", of=str(name), reason=reason)
    return None
