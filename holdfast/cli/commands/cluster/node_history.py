"""`holdfast nodes NODE`: what is known of a node over incidents and jobs, and how probable a lasting fault is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import click
import msgspec

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, as_dicts, read
from holdfast.cli.connect.settings import own_settings
from holdfast.cli.incident_ids import number_or_id, numbers_of
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import Column, json_text, table
from holdfast.engines.record.history import NodeRecord
from holdfast.engines.record.racks import suspect_racks

_NODE = """
select n.key as node, n.state, n.job, n.reason, n.blocked_until, r.chance, r.last_at as chance_at,
       coalesce(r.body->'counts', '{}') as counts,
       coalesce(n.body->'facts'->>'rack', r.body->'marks'->-1->>'rack', '') as rack
from (select $1::text as key) asked
left join standby.nodes n on n.key = asked.key
left join controller.node_records r on r.key = asked.key
where n.key is not null or r.key is not null
"""
_RECORDS = "select body from controller.node_records"
_HISTORY = """
select at, kind, counts, job, incident, symptom, device, peer, rack, text, event
from controller.node_history where node = $1 order by at desc
"""


@click.command("show")
@click.argument("node")
@reading_options
def show(node: str, directory: Path, database_url: str | None, as_json: bool) -> None:
    """Show NODE's history over incidents and jobs: failures, checks, evictions, and the chance of a lasting fault.

    `show` may be left out. COUNTS shows whether an entry is held against the node. No is for silence, failures
    with another explanation, results of checks. The chance is as of the last entry, and halves its distance to that of
    any node in `[record] half_life_days`. Its rack is named if more nodes of it have failed than chance explains.
    """
    require_name(node, "node name")

    async def fetch(connection: Connection) -> tuple[list[asyncpg.Record], list[dict[str, Any]], list[asyncpg.Record]]:
        history = as_dicts(await connection.fetch(_HISTORY, node))
        numbers = await numbers_of(connection, [row["incident"] for row in history if row["incident"]])
        for row in history:
            row["incident_number"] = numbers.get(row["incident"])
        return await connection.fetch(_NODE, node), history, await connection.fetch(_RECORDS)

    about, history, records = read(reader_url(directory, database_url), fetch)
    if not about:
        raise click.ClickException(f"there is no node {node}; `holdfast nodes` lists them")
    (known,) = as_dicts(about)
    rack = _suspicion_of(known["rack"], [msgspec.convert(row["body"], NodeRecord) for row in records])
    if as_json:
        click.echo(json_text(known | {"node": node, "rack_finding": rack, "history": history}, indent=2))
        return
    click.echo(_described(node, known))
    if rack:
        click.echo(f"jobs get nodes of its rack last: {rack}")
    if history:
        columns: dict[str, Column] = {
            "AT": "at",
            "ENTRY": "kind",
            "COUNTS": "counts",
            "JOB": "job",
            "INCIDENT": lambda row: number_or_id(row["incident"] or "", row["incident_number"]),
            "DEVICE": "device",
            "TEXT": "text",
        }
        click.echo(table(columns, history))


def _suspicion_of(rack: str, records: list[NodeRecord]) -> str:
    """Return what the records of all nodes show about a rack, under the settings of this command; "" if nothing."""
    policy = own_settings().record
    found = suspect_racks(records, datetime.now(UTC), policy)
    return next((it.in_words(policy) for it in found if it.rack == rack), "")


def _described(node: str, known: dict[str, Any]) -> str:
    state = known["state"] or "not in the inventory"
    state += f" in job {known['job']}" if known["job"] else ""
    if known["chance"] is None:
        return f"{node} is {state}; nothing is known against it"
    as_of = f"{known['chance_at']:%Y-%m-%d %H:%M}"
    return f"{node} is {state}; chance of a lasting fault: {known['chance']:.0%}, as of {as_of}"
