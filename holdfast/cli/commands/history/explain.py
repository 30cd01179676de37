"""`holdfast explain INCIDENT`: the rungs taken, their evidence, and the next rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, read
from holdfast.cli.incident_ids import checked_incident, full_id, numbers_of
from holdfast.cli.output.tables import cell, json_text

_RECORD = """
select key, job, opened_at, closed_at, symptom, summary, outcome, attempts, body->'taken' as taken
from controller.incidents where key = $1
"""
_EVIDENCE = """
select id::text, at, type, node, (body->>'rank')::int as rank, body
from historian.events where id = any($1::uuid[]) order by at
"""
_WITHHELD = """
select at, body->>'mechanism' as mechanism, body->>'rung' as rung, node, body->>'reason' as reason
from historian.events where type = 'withheld' and incident = $1::uuid order by at
"""

_SHOWN = ("detail", "lines", "symptom", "exit_code", "signal", "step", "summary", "evidence")

RUNGS = {
    "reattempt": "restart in place, on the same nodes",
    "wait": "stop the ranks, and start them again on the same nodes after a pause",
    "replace": "replace a node that leaves with another",
    "stop_time_checks": "stop the ranks and test the nodes",
    "replay": "replay training in small groups, and compare their results bit by bit",
    "evict": "evict and continue on a standby",
    "rollback": "return to the last good version of the code",
    "stop": "stop, and leave the decision to a person",
}


@click.command()
@click.argument("incident")
@reading_options
def explain(incident: str, directory: Path, database_url: str | None, as_json: bool) -> None:
    """Explain an INCIDENT: each decision with its evidence, and the decision had the same happened again.

    \b
        holdfast explain last

    INCIDENT is its number in `holdfast incidents`, last, an id or the beginning of one.

    `holdfast incidents` lists incidents; `holdfast show` has the whole timeline with seconds per phase.
    """
    name = checked_incident(incident)
    found = read(reader_url(directory, database_url), lambda connection: _fetch(connection, name))
    click.echo(json_text(found, indent=2) if as_json else "\n".join(_in_words(found)))


async def _fetch(connection: Connection, name: str) -> dict[str, Any]:
    key = await full_id(connection, name)
    row = await connection.fetchrow(_RECORD, key)
    if row is None:
        raise click.ClickException(f"the controller has deleted {key}; `holdfast show` has its events")
    about = dict(row)
    taken = about.pop("taken") or []
    ids = [id for rung in taken for id in rung.get("evidence", ())]
    evidence = {row["id"]: dict(row) for row in await connection.fetch(_EVIDENCE, ids)}
    withheld = [dict(row) for row in await connection.fetch(_WITHHELD, about["key"])]
    for rung in taken:
        rung["evidence"] = [_shown(evidence[id]) if id in evidence else {"id": id} for id in rung.get("evidence", ())]
    about["number"] = (await numbers_of(connection, [key])).get(key)
    return {"incident": about, "rungs": taken, "withheld": withheld}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    body = row["body"]
    kept = {name: body[name] for name in _SHOWN if name in body}
    if exception := body.get("exception"):
        kept["exception"] = f"{exception['type']}: {exception['message']}"
    return {name: row[name] for name in ("id", "at", "type", "node")} | {"rank": body.get("rank")} | kept


def _in_words(found: dict[str, Any]) -> list[str]:
    about = found["incident"]
    lines = [
        f"Incident {about['number']} ({about['key']}) of job {cell(about['job'])}: {cell(about['outcome'] or 'open')}",
        f"  {cell(about['symptom'])}: {cell(about['summary'])}",
    ]
    if not found["rungs"]:
        lines += ["", "No decision was recorded."]
    for number, rung in enumerate(found["rungs"], 1):
        nodes = f" {', '.join(map(cell, rung['nodes']))}" if rung.get("nodes") else ""
        lines += [
            "",
            f"{number}. {cell(rung['rung'])}{nodes} (generation {rung['generation']} failed): "
            f"{RUNGS.get(rung['rung'], 'a rung of a newer version')}",
            f"   because {cell(rung['reason'])}",
        ]
        lines += [f"   {line}" for item in rung["evidence"] for line in _evidence(item)]
        if rung.get("next"):
            lines.append(f"   had it happened again: {cell(rung['next'])}")
    for item in found["withheld"]:
        lines += ["", f"Withheld by {cell(item['mechanism'])}: {cell(item['rung'])} {cell(item['node'])}"]
        lines.append(f"   because {cell(item['reason'])}")
    return lines


def _evidence(item: dict[str, Any]) -> list[str]:
    if "type" not in item:
        return [f"evidence {item['id']}: the historian has not recorded it (yet)"]
    rank = f"rank {item['rank']}" if item["rank"] is not None else ""
    where = " ".join(filter(None, (item["node"], rank)))
    what = [cell(item[name]) for name in ("exception", "detail", "summary") if item.get(name)]
    what += [f"signal {item['signal']}"] if item.get("signal") else []
    lines = [f"evidence {cell(item['type'])} {cell(where)}: {'; '.join(what) or item['id']}"]
    return lines + [f"  | {cell(line)}" for line in (*item.get("lines", ()), *item.get("evidence", ()))]
