"""`holdfast incidents`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import read
from holdfast.cli.incident_ids import recent_incidents
from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import Column, cell, print_rows, seconds
from holdfast.cli.values import WholeNumber


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

    rows = read(reader_url(directory, database_url), lambda connection: recent_incidents(connection, job, limit))
    columns: dict[str, Column] = {
        "NUMBER": "number",
        "JOB": "job",
        "OPENED": "opened_at",
        "SYMPTOM": "symptom",
        "ATTEMPTS": "attempts",
        "EVICTED": "nodes_evicted",
        "OUTCOME": "outcome",
        "LOST STEPS": lambda row: steps_lost(row["lost_steps"]) if row["has_record"] else None,
        "SECONDS": lambda row: seconds(row["seconds_to_recover"]),
        "SUMMARY": "summary",
    }
    print_rows(rows, columns, as_json=as_json, empty=f"no incidents of job {cell(job)}" if job else "no incidents")
