"""The agent's durable memory and outbox: one SQLite file with one writer.

Events and the state that they follow from are written in one transaction, so a kill leaves both or neither. There are
two lanes, because measurements are many and must not delay the evidence that decisions need. The newest published
messages are kept, since the bus may lose them (`holdfast.daemon.lost_messages`). It keeps measurements in memory only,
so it loses them at each restart.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.bus import Message, StreamPosition
from holdfast.store import Published
from holdfast_agent.files.wal_sync import WalSync

MEASUREMENTS_MAX = 20_000
"""Maximum number of unpublished measurements; the oldest are dropped, because a cut may last long."""

MEASUREMENTS_KEPT_MAX = 100
"""Number of published measurements kept: at least half a minute's worth."""
EVIDENCE_KEPT_MAX = 5_000
"""Number of published messages of evidence kept: what a node publishes in hours, some megabytes."""

_SCHEMA = """
create table if not exists outbox (
    position integer primary key autoincrement, lane integer not null, id text not null,
    subject text not null, body blob not null, headers text not null
);
create index if not exists outbox_by_lane on outbox (lane, position);
drop table if exists published;
create table if not exists kept (
    position integer primary key, lane integer not null, id text not null, subject text not null, body blob not null,
    headers text not null, stream text not null, sequence integer not null
);
create index if not exists kept_by_stream on kept (lane, stream, sequence);
create table if not exists memory (key text primary key, value blob not null) without rowid;
"""


_COMPANIONS = ("-wal", "-shm")
"""Files of SQLite beside the database."""


class Lane(IntEnum):
    """Publishing order is kept within a lane only."""

    EVIDENCE = 0
    MEASUREMENTS = 1


_KEPT_MAX = {Lane.EVIDENCE: EVIDENCE_KEPT_MAX, Lane.MEASUREMENTS: MEASUREMENTS_KEPT_MAX}


class Spool:
    """The spool file. Calls take tenths of a millisecond; none waits for the disk.

    A commit survives the agent's end at once, and a power cut a moment later: another thread syncs the log. Raises
    sqlite3.DatabaseError if the file is damaged; `open_spool` sets it aside.
    """

    def __init__(self, path: Path) -> None:
        _close_to_others(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("pragma journal_mode = wal")
            # Commits do not sync, checkpoints do.
            self._db.execute("pragma synchronous = normal")
            self._db.execute("pragma busy_timeout = 2000")
            self._db.executescript(_SCHEMA)
            if (found := self._db.execute("pragma quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)
            self._sync = WalSync(_beside(path, "-wal"))
        except BaseException:
            self._db.close()
            raise

    def commit(
        self,
        messages: Sequence[Message] = (),
        memory: Mapping[str, bytes] | None = None,
        lane: Lane = Lane.EVIDENCE,
    ) -> None:
        """Add messages and remember values in one transaction."""
        rows = [(lane, m.id, m.subject, m.body, msgspec.json.encode(m.headers).decode()) for m in messages]
        with _all_or_nothing(self._db):
            if rows:
                self._db.executemany(
                    "insert into outbox (lane, id, subject, body, headers) values (?, ?, ?, ?, ?)", rows
                )
            if memory:
                self._db.executemany("insert or replace into memory values (?, ?)", list(memory.items()))
        if lane == Lane.EVIDENCE or memory:
            self._sync.request()

    def recall(self, key: str) -> bytes | None:
        row = self._db.execute("select value from memory where key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def forget(self, keys: Sequence[str]) -> None:
        with _all_or_nothing(self._db):
            self._db.executemany("delete from memory where key = ?", [(key,) for key in keys])

    def forget_measurements(self) -> int:
        """Drop all but the newest measurements; return the number dropped."""
        return self._db.execute(
            "delete from outbox where lane = ?1 and position <= "
            "(select position from outbox where lane = ?1 order by position desc limit 1 offset ?2)",
            (Lane.MEASUREMENTS, MEASUREMENTS_MAX),
        ).rowcount

    def outbox(self, lane: Lane) -> LaneOutbox:
        return LaneOutbox(self._db, lane)

    def close(self) -> None:
        self._sync.close()
        self._db.close()


class SetAside(NamedTuple):
    """A damaged spool, moved out of the way."""

    path: Path
    reason: str


def open_spool(path: Path, check: Callable[[Spool], object]) -> tuple[Spool, SetAside | None]:
    """Open the spool. One that is damaged, or that `check` cannot decode, is set aside and replaced by an empty one."""
    try:
        spool = Spool(path)
        try:
            check(spool)
        except BaseException:
            spool.close()
            raise
    except sqlite3.OperationalError:
        # A full disk, or a missing right: the file may be whole.
        raise
    except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        for suffix in ("", *_COMPANIONS):
            with suppress(FileNotFoundError):
                _beside(path, suffix).rename(_beside(aside, suffix))
        return Spool(path), SetAside(aside, str(error))
    return spool, None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _close_to_others(path: Path) -> None:
    """Give the file to its owner only: orders hold the secrets of jobs. SQLite gives its other files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", *_COMPANIONS):
        with suppress(FileNotFoundError):
            _beside(path, suffix).chmod(0o600)


class LaneOutbox:
    """One lane of the spool as an outbox (see `holdfast.store.Outbox`)."""

    def __init__(self, db: sqlite3.Connection, lane: Lane) -> None:
        self._db = db
        self._lane = lane
        self._emptied = asyncio.Event()

    async def until_empty(self) -> None:
        """Wait until the bus has stored every message."""
        self._emptied.clear()
        if self._is_empty():
            return
        await self._emptied.wait()

    def _is_empty(self) -> bool:
        return self._db.execute("select 1 from outbox where lane = ? limit 1", (self._lane,)).fetchone() is None

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        """Return the oldest unpublished messages with their positions, in order."""
        rows = self._db.execute(
            "select position, id, subject, body, headers from outbox where lane = ? order by position limit ?",
            (self._lane, limit),
        ).fetchall()
        return [
            (
                position,
                Message(
                    id=message_id,
                    subject=subject,
                    body=body,
                    headers=msgspec.json.decode(headers, type=dict[str, str]),
                ),
            )
            for position, message_id, subject, body, headers in rows
        ]

    async def published(self, stored: Mapping[int, StreamPosition | None]) -> None:
        """Note that the bus has stored these messages."""
        with _all_or_nothing(self._db):
            self._db.executemany(
                "insert or replace into kept "
                "select position, lane, id, subject, body, headers, ?, ? from outbox where position = ?",
                [(place.stream, place.sequence, position) for position, place in stored.items() if place],
            )
            self._db.execute(
                "delete from kept where lane = ?1 and position <= "
                "(select position from kept where lane = ?1 order by position desc limit 1 offset ?2)",
                (self._lane, _KEPT_MAX[self._lane]),
            )
            self._db.executemany("delete from outbox where position = ?", [(position,) for position in stored])
        if self._is_empty():
            self._emptied.set()

    async def newest_published(self) -> list[Published]:
        """Return the newest published message of each stream."""
        # SQLite takes the other columns from the row of the maximum.
        return self._published("select stream, max(sequence), id from kept where lane = ? group by stream", self._lane)

    async def published_in(self, stream: str) -> list[Published]:
        """Return the published messages of a stream that are still kept, the oldest first."""
        return self._published(
            "select stream, sequence, id from kept where lane = ? and stream = ? order by sequence", self._lane, stream
        )

    def _published(self, statement: str, *values: object) -> list[Published]:
        rows = self._db.execute(statement, values).fetchall()
        return [Published(StreamPosition(stream, sequence), message_id) for stream, sequence, message_id in rows]

    async def publish_again(self, first: StreamPosition) -> int:
        """Make the published messages from this position on pending again; return their number."""
        lost = "from kept where lane = ? and stream = ? and sequence >= ?"
        values = (self._lane, first.stream, first.sequence)
        with _all_or_nothing(self._db):
            self._db.execute(f"insert into outbox select position, lane, id, subject, body, headers {lost}", values)
            return self._db.execute(f"delete {lost}", values).rowcount


@contextmanager
def _all_or_nothing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        # On a full disk SQLite may have rolled back by itself.
        if db.in_transaction:
            db.execute("rollback")
        raise
