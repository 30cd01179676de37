"""The vault's side of its succession: it sends its successor every change of what it holds, as it happens."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog

from holdfast.node.vault.messages import Assign, SealedStep, Serve, ShardName
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.succession.succession_records import (
    DEPOSITS_MAX,
    Deposit,
    Deposits,
    Ended,
    Notes,
    Record,
    Serving,
    ShelfRecord,
    close_all,
    withdraw,
)

REPLACED_AFTER_S_MIN, REPLACED_AFTER_S_MAX = 1.0, 60.0
"""Pause before a successor that is gone is replaced; it doubles while they end soon."""

log = structlog.get_logger(__name__)


class Successor(NamedTuple):
    """A process that waits, and the connection to it."""

    link: socket.socket
    pid: int


class _Shelf(NamedTuple):
    record: ShelfRecord
    shards: dict[int, tuple[Segment, SealedContents]]
    """Shards by their number in the record."""


class Handover:
    """Never waits: a successor that does not read is ended and replaced."""

    def __init__(self, successor: Successor | None, start: Callable[[], Successor]) -> None:
        """`start` makes another one."""
        self._lock = threading.Lock()
        self._successor = successor
        self._start = start
        self._numbers = itertools.count(1)
        self._shelves: dict[ShardName, _Shelf] = {}
        self._notes: dict[int, int] = {}
        """The files with the notes of the shards, by number."""
        self._assigned: Assign | None = None
        self._serves: Serve | None = None
        self._is_serving = False
        self._is_closed = False
        self._pause_s = REPLACED_AFTER_S_MIN
        self._started_at = time.monotonic()

    def serving(self) -> None:
        with self._lock:
            self._is_serving = True
            self._send([Serving()])

    def assigned(self, order: Assign) -> None:
        with self._lock:
            self._assigned = order
            self._send([order])

    def serves(self, order: Serve) -> None:
        with self._lock:
            self._serves = order
            self._send([order])

    def shelf(
        self,
        name: ShardName,
        held: Sequence[tuple[Segment, SealedContents]],
        cut: Cut | None,
        sent: tuple[SealedStep, ...],
    ) -> None:
        """Record what a shelf has from now on."""
        with self._lock:
            before = self._shelves.get(name)
            known = before.shards if before is not None else {}
            numbers = {(id(segment), id(contents)): number for number, (segment, contents) in known.items()}
            shards = {numbers.get((id(it[0]), id(it[1]))) or next(self._numbers): it for it in held}
            record = ShelfRecord(name=name, deposits=tuple(shards), cut=cut, sent=sent)
            if before is not None and before.record == record:
                return
            if record.is_empty:
                self._shelves.pop(name, None)
            else:
                self._shelves[name] = _Shelf(record, shards)
            self._deposit({number: it for number, it in shards.items() if number not in known}, record)
            close_all(self._notes.pop(number) for number in known if number not in shards and number in self._notes)

    def withdraw(self, name: ShardName, segment: Segment) -> None:
        """Take a shard back that is about to be overwritten: on return the successor has it no more.

        It gets no message, which would wake it while a rank waits; it shares the file with the shard's notes.
        """
        with self._lock:
            shelf = self._shelves.get(name)
            for number, (each, _) in shelf.shards.items() if shelf is not None else ():
                if each is segment and number in self._notes:
                    withdraw(self._notes[number])

    def close(self) -> None:
        """End the successor: the vault ends in order."""
        with self._lock:
            self._is_closed = True
            self._shelves.clear()
            close_all(self._notes.values())
            self._notes.clear()
            self._send([Ended()])
            if self._successor is not None:
                self._successor.link.close()
                self._successor = None

    def _deposit(self, shards: Mapping[int, tuple[Segment, SealedContents]], record: ShelfRecord) -> None:
        """Send the shards, and the record that refers to them with the last: each message wakes the successor."""
        numbers = list(shards)
        try:
            for first in range(0, len(numbers) or 1, DEPOSITS_MAX):
                some = numbers[first : first + DEPOSITS_MAX]
                deposits = tuple(Deposit(number=it, nbytes=shards[it][0].nbytes) for it in some)
                descriptors = [it for number in some for it in self._files_of(number, *shards[number])]
                is_last = first + DEPOSITS_MAX >= len(numbers)
                self._send([Deposits(deposits=deposits), *([record] if is_last else [])], descriptors)
        except OSError as error:
            self._lose(error)

    def _files_of(self, number: int, segment: Segment, contents: SealedContents) -> tuple[int, int]:
        """Return the memory of a shard, and the file with its notes."""
        if number not in self._notes:
            notes = Notes(contents=contents, absent=tuple(sorted(segment.absent)))
            self._notes[number] = _file_of(msgspec.msgpack.encode(notes))
        return segment.descriptor, self._notes[number]

    def _send(self, some: Sequence[Record], descriptors: Sequence[int] = ()) -> None:
        if self._successor is None:
            return
        try:
            socket.send_fds(self._successor.link, [msgspec.msgpack.encode(some)], descriptors)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """End the successor and start another one later: its state is not the vault's any more."""
        successor, self._successor = self._successor, None
        if successor is None:
            return
        with suppress(ProcessLookupError):
            os.kill(successor.pid, signal.SIGKILL)
        successor.link.close()
        if time.monotonic() > self._started_at + REPLACED_AFTER_S_MAX:
            self._pause_s = REPLACED_AFTER_S_MIN
        log.warning("the vault's successor is gone", reason=error.strerror, another_in_s=self._pause_s)
        self._replace_later(successor.pid)

    def _replace_later(self, ended: int | None) -> None:
        replacing = threading.Timer(self._pause_s, self._replace, args=(ended,))
        replacing.daemon = True
        replacing.start()
        self._pause_s = min(2 * self._pause_s, REPLACED_AFTER_S_MAX)

    def _replace(self, ended: int | None) -> None:
        if ended is not None:
            with suppress(ChildProcessError):
                os.waitpid(ended, 0)
        with self._lock:
            if self._is_closed:
                return
            try:
                self._successor, self._started_at = self._start(), time.monotonic()
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the vault has no successor: what it holds would be lost with it", reason=str(error))
                self._replace_later(None)
                return
            for order in (self._assigned, self._serves):
                if order is not None:
                    self._send([order])
            for record, shards in self._shelves.values():
                self._deposit(shards, record)
            if self._is_serving:
                self._send([Serving()])


def _file_of(data: bytes) -> int:
    """Return a file in memory with these bytes: they may be more than a message holds."""
    descriptor = os.memfd_create("vault-contents", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
