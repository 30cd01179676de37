"""A process that learns a model from recorded history, and ends: the historian goes on recording meanwhile.

It is told on its standard input what to do, and tells on its standard output what came of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime

import asyncpg
import msgspec

from holdfast.engines.telemetry import learning
from holdfast.settings.telemetry import TelemetryPolicy

NICENESS = 10
CONNECT_TIMEOUT_S = 30.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to learn from. The model is of `now`."""

    database_url: str
    policy: TelemetryPolicy
    since: datetime
    now: datetime


async def learned(wanted: Wanted) -> learning.Learned:
    """Read the history, and learn.

    Raises:
        OSError, asyncpg.PostgresError: the database is not there.
    """
    settings = {"application_name": "holdfast-historian-learner", "default_transaction_read_only": "on"}
    connection = await asyncpg.connect(wanted.database_url, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
    try:
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=msgspec.json.decode)
        measured = await connection.fetch(learning.MEASURED, wanted.since, None, learning.EVENTS_MAX)
        incidents = await connection.fetch(learning.INCIDENTS, wanted.since)
    finally:
        connection.terminate()
    return learning.learn(measured, incidents, wanted.policy, wanted.now)


def main() -> None:
    """Entry point."""
    os.nice(NICENESS)
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(learned(wanted))))


if __name__ == "__main__":
    main()
