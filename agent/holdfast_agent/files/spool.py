"""The agent's memory: what it has to say until the bus has it, and where it stands. One SQLite file, one writer.

What is said and what it follows from are written in one transaction, so a kill leaves both or neither. Two lanes:
measurements are many, and must not delay what decisions wait for. The bus has them in memory only, and forgets them if
it is killed: so the newest are kept when they are published, and said again to a bus that is back. Whoever has them
already knows them by their ids.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import msgspec

from holdfast.bus import Message

MEASUREMENTS_MAX = 20_000
"""Measurements beyond this are forgotten, the oldest first: a node may be cut off for long."""

REPUBLISHED_MAX = 100
"""Measurements that are kept beyond their publication: those of half a minute or more."""

_SCHEMA = """
create table if not exists outbox (
    position integer primary key autoincrement, lane integer not null, id text not null,
    subject text not null, body blob not null, headers text not null
);
create index if not exists outbox_by_lane on outbox (lane, position);
create table if not exists published (
    position integer primary key, id text not null, subject text not null, body blob not null, headers text not null
);
create table if not exists memory (key text primary key, value blob not null) without rowid;
"""


class Lane(IntEnum):
    """What a message waits behind."""

    EVIDENCE = 0
    MEASUREMENTS = 1


class Spool:
    """The file. Calls take some tenths of a millisecond; none waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        # A commit survives the agent's end, which is what a spool is for; a power cut ends the ranks as well.
        self._db.execute("pragma synchronous = normal")
        self._db.execute("pragma busy_timeout = 2000")
        self._db.executescript(_SCHEMA)

    def commit(
        self,
        said: Sequence[Message] = (),
        memory: Mapping[str, bytes] | None = None,
        lane: Lane = Lane.EVIDENCE,
    ) -> None:
        """Say and remember, both or neither."""
        rows = [(lane, m.id, m.subject, m.body, msgspec.json.encode(m.headers).decode()) for m in said]
        with _all_or_nothing(self._db):
            if rows:
                self._db.executemany(
                    "insert into outbox (lane, id, subject, body, headers) values (?, ?, ?, ?, ?)", rows
                )
            if memory:
                self._db.executemany("insert or replace into memory values (?, ?)", list(memory.items()))

    def recall(self, key: str) -> bytes | None:
        """What was remembered under `key`."""
        row = self._db.execute("select value from memory where key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def forget(self, keys: Sequence[str]) -> None:
        """Remember nothing under these keys any more."""
        with _all_or_nothing(self._db):
            self._db.executemany("delete from memory where key = ?", [(key,) for key in keys])

    def forget_measurements(self) -> int:
        """Keep the newest measurements only; returns how many were given up."""
        return self._db.execute(
            "delete from outbox where lane = ?1 and position <= "
            "(select position from outbox where lane = ?1 order by position desc limit 1 offset ?2)",
            (Lane.MEASUREMENTS, MEASUREMENTS_MAX),
        ).rowcount

    def republish_measurements(self) -> None:
        """Publish once more what was published last: the bus may have lost it."""
        with _all_or_nothing(self._db):
            self._db.execute(
                "insert into outbox select position, ?, id, subject, body, headers from published", (Lane.MEASUREMENTS,)
            )
            self._db.execute("delete from published")

    def outbox(self, lane: Lane) -> LaneOutbox:
        """One lane, for a relay."""
        return LaneOutbox(self._db, lane)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class LaneOutbox:
    """One lane of the spool as an outbox (see `holdfast.store.Outbox`)."""

    def __init__(self, db: sqlite3.Connection, lane: Lane) -> None:
        self._db = db
        self._lane = lane
        self._emptied = asyncio.Event()

    async def until_empty(self) -> None:
        """Wait until the bus has everything that was said."""
        self._emptied.clear()
        if self._is_empty():
            return
        await self._emptied.wait()

    def _is_empty(self) -> bool:
        return self._db.execute("select 1 from outbox where lane = ? limit 1", (self._lane,)).fetchone() is None

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        """The oldest unpublished messages with their positions, in order."""
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

    async def published(self, positions: list[int]) -> None:
        """These are stored by the bus."""
        rows = [(position,) for position in positions]
        with _all_or_nothing(self._db):
            if self._lane == Lane.MEASUREMENTS:
                self._db.executemany(
                    "insert or replace into published "
                    "select position, id, subject, body, headers from outbox where position = ?",
                    rows,
                )
                self._db.execute(
                    "delete from published where position <= "
                    "(select position from published order by position desc limit 1 offset ?)",
                    (REPUBLISHED_MAX,),
                )
            self._db.executemany("delete from outbox where position = ?", rows)
        if self._is_empty():
            self._emptied.set()


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
