"""The vault's side of its succession: it gives a waiting process all that it would take to go on in its place."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from holdfast.node.vault.messages import Assign, SealedStep, ShardName
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.succession.records import Deposit, Ended, Record, Serving, ShelfRecord

REPLACED_AFTER_S = 1.0
"""Pause before a successor that is gone is replaced."""

log = structlog.get_logger(__name__)


class Successor(NamedTuple):
    """A process that waits, and the connection to it."""

    link: socket.socket
    pid: int


class _Shelf(NamedTuple):
    record: ShelfRecord
    shards: dict[int, tuple[Segment, SealedContents]]


class Handover:
    """Never waits: a successor that does not read is ended and replaced."""

    def __init__(self, successor: Successor | None, start: Callable[[], Successor]) -> None:
        """`start` makes another one."""
        self._lock = threading.Lock()
        self._successor = successor
        self._start = start
        self._numbers = itertools.count(1)
        self._shelves: dict[ShardName, _Shelf] = {}
        self._assigned: Assign | None = None
        self._is_serving = False
        self._is_closed = False

    def serving(self) -> None:
        with self._lock:
            self._is_serving = True
            self._send(Serving())

    def assigned(self, order: Assign) -> None:
        with self._lock:
            self._assigned = order
            self._send(order)

    def shelf(
        self,
        name: ShardName,
        held: Sequence[tuple[Segment, SealedContents]],
        cut: Cut | None,
        sent: tuple[SealedStep, ...],
    ) -> None:
        """Record what a shelf has from now on. On return the successor has no part in anything else of it."""
        with self._lock:
            before = self._shelves.get(name)
            known = before.shards.items() if before is not None else ()
            numbers = {(id(segment), id(contents)): number for number, (segment, contents) in known}
            shards = {numbers.get((id(it[0]), id(it[1]))) or next(self._numbers): it for it in held}
            record = ShelfRecord(name=name, deposits=tuple(shards), cut=cut, sent=sent)
            if before is not None and before.record == record:
                return
            if record.is_empty:
                self._shelves.pop(name, None)
            else:
                self._shelves[name] = _Shelf(record, shards)
            for number in shards.keys() - {*(before.record.deposits if before else ())}:
                self._deposit(number, *shards[number])
            self._send(record)

    def close(self) -> None:
        """End the successor: the vault ends in order."""
        with self._lock:
            self._is_closed = True
            self._shelves.clear()
            self._send(Ended())
            if self._successor is not None:
                self._successor.link.close()
                self._successor = None

    def _deposit(self, number: int, segment: Segment, contents: SealedContents) -> None:
        if self._successor is None:
            return
        try:
            notes = _file_of(msgspec.msgpack.encode(contents))
        except OSError as error:
            self._lose(error)
            return
        try:
            deposit = Deposit(number=number, nbytes=segment.nbytes, absent=tuple(sorted(segment.absent)))
            self._send(deposit, segment.descriptor, notes)
        finally:
            os.close(notes)

    def _send(self, record: Record, *descriptors: int) -> None:
        if self._successor is None:
            return
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            socket.send_fds(self._successor.link, [msgspec.msgpack.encode(record)], descriptors, flags)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Do without one. It must not go on with a state that is not the vault's any more, so it is ended first."""
        successor, self._successor = self._successor, None
        if successor is None:
            return
        log.warning("the vault's successor is gone", reason=error.strerror, another_in_s=REPLACED_AFTER_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(successor.pid, signal.SIGKILL)
        successor.link.close()
        replacing = threading.Timer(REPLACED_AFTER_S, self._replace, args=(successor.pid,))
        replacing.daemon = True
        replacing.start()

    def _replace(self, ended: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended, 0)
        with self._lock:
            if self._is_closed:
                return
            try:
                self._successor = self._start()
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the vault has no successor: what it holds would be lost with it", reason=str(error))
                return
            if self._assigned is not None:
                self._send(self._assigned)
            for record, shards in self._shelves.values():
                for number, (segment, contents) in shards.items():
                    self._deposit(number, segment, contents)
                self._send(record)
            if self._is_serving:
                self._send(Serving())


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
