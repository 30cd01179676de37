"""The agent's durable memory and outbox: one SQLite file with one writer.

Events and the state that they follow from are written in one transaction, so a kill leaves both or neither. There are
two lanes, because measurements are many and must not delay the evidence that decisions need. The bus keeps measurements
in memory only and loses them when it is killed. So the newest published ones are kept and republished after a
reconnect; consumers that already have them drop them by id.
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
"""Maximum number of unpublished measurements; the oldest are dropped, because a cut may last long."""

REPUBLISHED_MAX = 100
"""Number of published measurements kept for republishing: at least half a minute's worth."""

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
    """Publishing order is kept within a lane only."""

    EVIDENCE = 0
    MEASUREMENTS = 1


class Spool:
    """The spool file. Calls take tenths of a millisecond; none waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        # A commit survives the agent's end, which is enough: a power cut ends the ranks as well.
        self._db.execute("pragma synchronous = normal")
        self._db.execute("pragma busy_timeout = 2000")
        self._db.executescript(_SCHEMA)

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

    def republish_measurements(self) -> None:
        """Publish the last published measurements again: the bus may have lost them."""
        with _all_or_nothing(self._db):
            self._db.execute(
                "insert into outbox select position, ?, id, subject, body, headers from published", (Lane.MEASUREMENTS,)
            )
            self._db.execute("delete from published")

    def outbox(self, lane: Lane) -> LaneOutbox:
        return LaneOutbox(self._db, lane)

    def close(self) -> None:
        self._db.close()


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

    async def published(self, positions: list[int]) -> None:
        """Remove messages that the bus has stored."""
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
