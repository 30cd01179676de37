"""A process that learns a model of telemetry from recorded history, while the historian goes on recording.

It reads its task from the standard input, writes the result to the standard output, and exits.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime

import msgspec

from holdfast.engines.telemetry import learning
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.store.connecting import connect

NICENESS = 10
CONNECT_TIMEOUT_S = 30.0


class LearningTask(msgspec.Struct, frozen=True, kw_only=True):
    """The history to learn from, since `since`; `now` becomes the date of the model."""

    database_url: str
    policy: TelemetryPolicy
    since: datetime
    now: datetime


async def learned(task: LearningTask) -> learning.Learned:
    """Read the history and learn; raise OSError or asyncpg.PostgresError if the database is not there."""
    settings = {"application_name": "holdfast-historian-learner", "default_transaction_read_only": "on"}
    connection = await connect(task.database_url, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
    try:
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=msgspec.json.decode)
        measured = await connection.fetch(learning.MEASURED, task.since, None, learning.EVENTS_MAX)
        incidents = await connection.fetch(learning.INCIDENTS, task.since)
    finally:
        connection.terminate()
    return learning.learn(measured, incidents, task.policy, task.now)


def main() -> None:
    os.nice(NICENESS)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=LearningTask)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(learned(task))))


if __name__ == "__main__":
    main()
