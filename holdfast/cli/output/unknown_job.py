"""The error for a job that the controller does not know: it never existed, or was deleted after its end."""

from __future__ import annotations

import click

from holdfast.cli.connect.database import Connection

_FORGOTTEN = "select ended_at from controller.used_names where key = $1"


async def unknown_job(connection: Connection, job: str) -> click.ClickException:
    """Return the error for this job name, by what the database knows of it."""
    ended_at = await connection.fetchval(_FORGOTTEN, job)
    if ended_at is None:
        return click.ClickException(f"there is no job named {job}; `holdfast jobs` lists them")
    return click.ClickException(
        f"job {job} ended on {ended_at:%Y-%m-%d} and was deleted; the history still has it: "
        f"holdfast sql \"select * from historian.jobs where job = '{job}'\""
    )
