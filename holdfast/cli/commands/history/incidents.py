"""`holdfast incidents`."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.database import Connection, as_dicts, read
from holdfast.cli.connect.options import reading_options
from holdfast.cli.incident_ids import NUMBERED
from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import cell, json_text, render, seconds
from holdfast.cli.values import WholeNumber

_INCIDENTS = f"""
with numbered as ({NUMBERED})
select n.number, c.key as incident, c.job, c.opened_at, c.closed_at, c.symptom, c.summary,
       h.node, h.rank, h.nodes_evicted, c.attempts, coalesce(c.outcome, 'open') as outcome, h.lost_steps,
       h.seconds_to_recover, h.incident is not null as has_record
from (select * from controller.incidents where $1::text is null or job = $1 order by opened_at desc limit $2) c
join numbered n on n.key = c.key
left join lateral (select * from historian.incidents h where h.incident = c.key::uuid limit 1) h on true
order by c.opened_at desc
"""

SHORT_ID_CHARS = 13


def short_id(incident: str) -> str:
    """Return enough of an id to distinguish incidents: the time to the millisecond."""
    return incident[:SHORT_ID_CHARS]


@click.command()
@reading_options
@click.option("--job", help="Only incidents of this job.")
@click.option("--limit", type=WholeNumber(min=1), default=50, show_default=True, help="Number of incidents to show.")
def incidents(directory: Path, database_url: str | None, as_json: bool, job: str | None, limit: int) -> None:
    """List the incidents, newest first: symptom, attempts, evicted nodes, outcome, lost steps, seconds to recover.

    \b
        holdfast incidents --job llama-7

    `holdfast show NUMBER` shows one; numbers count all recorded incidents, the oldest first.
    """

    async def fetch(connection: Connection) -> list[asyncpg.Record]:
        return await connection.fetch(_INCIDENTS, job, limit)

    rows = read(reader_url(directory, database_url), fetch)
    if as_json:
        click.echo(json_text(as_dicts(rows), indent=2))
    elif not rows:
        click.echo(f"no incidents of job {cell(job)}" if job else "no incidents")
    else:
        click.echo(
            render(
                [
                    "NUMBER",
                    "INCIDENT",
                    "JOB",
                    "OPENED",
                    "SYMPTOM",
                    "ATTEMPTS",
                    "EVICTED",
                    "OUTCOME",
                    "LOST STEPS",
                    "SECONDS",
                    "SUMMARY",
                ],
                [
                    (
                        row["number"],
                        short_id(row["incident"]),
                        row["job"],
                        row["opened_at"],
                        row["symptom"],
                        row["attempts"],
                        row["nodes_evicted"],
                        row["outcome"],
                        steps_lost(row["lost_steps"]) if row["has_record"] else None,
                        seconds(row["seconds_to_recover"]),
                        row["summary"],
                    )
                    for row in rows
                ],
            )
        )
