"""What to say of a job that is not there: there was never one, or it was forgotten."""

from __future__ import annotations

import click

from holdfast.cli.connect.database import Connection

_FORGOTTEN = "select ended_at from controller.used_names where key = $1"


async def unknown_job(connection: Connection, job: str) -> click.ClickException:
    """The error for a `job` that the controller does not know."""
    ended_at = await connection.fetchval(_FORGOTTEN, job)
    if ended_at is None:
        return click.ClickException(f"there is no job named {job}; `holdfast jobs` lists them")
    return click.ClickException(
        f"job {job} ended on {ended_at:%Y-%m-%d} and was forgotten; the history has it: "
        f"holdfast sql \"select * from historian.jobs where job = '{job}'\""
    )
