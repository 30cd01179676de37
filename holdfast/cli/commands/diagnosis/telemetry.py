"""`holdfast telemetry`: models of healthy training's telemetry."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import click
import msgspec

from holdfast.cli.connect.addresses import both_urls, reader_url
from holdfast.cli.connect.ask import ask, asked_by
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.connect_options import cluster_options, reading_options
from holdfast.cli.connect.database import Connection, read, read_rows
from holdfast.cli.connect.settings import own_settings
from holdfast.cli.output.duration import Duration
from holdfast.cli.output.tables import Column, json_text, print_rows
from holdfast.fresh_ids import uuid7
from holdfast.requests import ANALYZER_REQUESTS, KeepModel

_MODELS = """
select key as version, made_at, windows, accuracy, precision, recall, body->'jobs' as jobs
from analyzer.telemetry_models order by made_at desc
"""
_MODEL_COLUMNS: dict[str, Column] = {
    "VERSION": "version",
    "MADE": "made_at",
    "WINDOWS": "windows",
    "ACCURACY": "accuracy",
    "PRECISION": "precision",
    "RECALL": "recall",
    "JOBS": lambda row: ", ".join(row["jobs"][:4]),
}


@click.group()
def telemetry() -> None:
    """Train and list models of healthy telemetry: cores, memory, reads and writes, network, collectives.

    Agents measure telemetry every few seconds (`[telemetry] every_s`), and the analyzer reports jobs and ranks that
    deviate from a model of healthy ones (`telemetry_anomaly`). This is a hint: no node is evicted for it. The model is
    learned from the recorded history and tested on a part that was held out: by the historian once a day (`[telemetry]
    retrain_every_s`), or now, with `train`.

    \b
        holdfast telemetry train
        holdfast telemetry models
    """


@telemetry.command()
@click.option("--since", type=Duration(), default="2d", show_default=True, help="Age of the oldest history to read.")
@click.option("--job", "jobs", multiple=True, help="Learn from this job only. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Train and test, but keep the analyzer's present model.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def train(
    since: float,
    jobs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    directory: Path,
    nats_url: str | None,
    database_url: str | None,
) -> None:
    """Learn a model from recorded history, test it, and send it to the analyzer.

    Exit codes: 0 the analyzer uses the new model; 1 there is too little history, or the model failed its test, and the
    analyzer keeps its present model.
    """
    bus, database = both_urls(directory, nats_url, database_url)
    if failure := _train_once(bus, database, timedelta(seconds=since), jobs, dry_run=dry_run, as_json=as_json):
        raise click.ClickException(failure)


@telemetry.command()
@reading_options
def models(directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the models that the analyzer keeps, newest first: it uses the newest that fits its settings."""
    rows = read_rows(reader_url(directory, database_url), _MODELS)
    empty = "no model yet: `holdfast telemetry train` creates one"
    print_rows(rows, _MODEL_COLUMNS, as_json=as_json, empty=empty)


def _train_once(
    bus: str, database: str, since: timedelta, jobs: tuple[str, ...], *, dry_run: bool, as_json: bool
) -> str:
    """Train and send a model. Return the reason why there is no new model, "" on success."""
    # Imported here because NumPy takes long to import.
    from holdfast.engines.telemetry import learning

    policy = own_settings().telemetry
    now = datetime.now(UTC)

    async def history(connection: Connection) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
        measured = await connection.fetch(learning.MEASURED, now - since, list(jobs) or None, learning.EVENTS_MAX)
        return measured, await connection.fetch(learning.INCIDENTS, now - since)

    measured, incidents = read(database, history)
    learned = learning.learn(measured, incidents, policy, now)
    model = learned.model
    if model is None or model.scores is None:
        return learned.why_not
    scores = model.scores
    summary = {"version": model.version, "windows": model.windows, **msgspec.to_builtins(scores)}
    summary |= {"accuracy": scores.accuracy, "precision": scores.precision, "recall": scores.recall}
    summary["discarded"] = learned.why_not
    if as_json:
        click.echo(json_text(summary, indent=2))
    else:
        click.echo(
            f"version {model.version}: learned from {model.windows} windows, tested on {scores.healthy} healthy ones "
            f"({scores.false_alarms} false alarms), {scores.injected} injected anomalies "
            f"({scores.injected_found} found) and {scores.recorded} recorded ones ({scores.recorded_found} found)"
        )
    if learned.why_not:
        return learned.why_not
    if not dry_run:
        request = KeepModel(id=uuid7(), asked_by=asked_by(), model=msgspec.Raw(msgspec.json.encode(model)))
        return asyncio.run(_send(bus, request, quiet=as_json))
    return ""


async def _send(url: str, request: KeepModel, *, quiet: bool) -> str:
    async with connected(url, "telemetry") as bus:
        answer = await ask(bus, ANALYZER_REQUESTS, request, "analyzer")
    if answer.accepted and not quiet:
        click.echo(answer.message)
    return "" if answer.accepted else answer.message
