"""`holdfast show INCIDENT`: timeline, duration of each phase, decisions, evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, as_dicts, read
from holdfast.cli.follow.failures import end_of_output
from holdfast.cli.incident_ids import checked_incident, full_id, numbers_of
from holdfast.cli.output.kept_steps import one_in
from holdfast.cli.output.phases import TRAINING, phases_table
from holdfast.cli.output.step_words import steps_from, steps_lost
from holdfast.cli.output.tables import cell, json_text, printable, render, seconds

_RECORD = "select * from controller.incidents where key = $1"
_INCIDENT = "select * from historian.incidents where incident = $1::uuid"
_TIMELINE = """
select nth, at, seconds, class, type, generation, node, rank, what, event
from historian.incident_timeline where incident = $1::uuid order by nth
"""
_GENERATIONS = """
select generation, cause, detect_s, decide_s, wait_s, stop_s, start_s, first_step_s, total_s, restore_step, lost_steps,
       nodes, outcome, started_at, fault_at, is_start_known, step_source, step_source_name
from historian.generations where job = $1 and incident = $2::uuid order by generation
"""
_PHASES = """
select generation, phase, began_at, ended_at, seconds
from historian.incident_phases where job = $1 and incident = $2::uuid order by began_at, ended_at
"""
_GROUPS = """
select nodes, at_fault, cleared, in_doubt, tested_at, took_s, pool_s from historian.group_evictions
where incident = $1::uuid order by evicted_at
"""
_DIAGNOSIS = """
select node, (body->>'rank')::int as rank, body->>'symptom' as symptom, body->>'table_one' as table_one,
       body->>'root' as root, body->>'proof' as proof, body->>'rule' as rule,
       (body->>'confidence')::float8 as confidence,
       body->>'reason' as reason, body->>'advice' as advice, body->'lines' as lines, body->'evidence' as evidence
from historian.events where type = 'incident_diagnosed' and incident = $1::uuid order by at desc limit 1
"""
_EVIDENCE = """
select e.body from historian.events e
where e.type = 'process_exited' and e.id in (
    select t.event from historian.incident_timeline t where t.incident = $1::uuid and t.type = 'process_exited')
order by e.at
"""

# Of the generation that failed: a later one keeps every step at first.
_KEPT = """
select (e.body->>'every')::int from historian.events e
where e.type = 'keeping_spaced' and e.job = $1 and e.at <= $2
  and e.generation = (select max(g.generation) from historian.generations g where g.job = $1 and g.started_at <= $2)
order by e.at desc limit 1
"""

LOG_LINES_SHOWN = 20


@click.command()
@click.argument("incident")
@reading_options
@click.option("--full", is_flag=True, help="Show the whole recorded end of each rank's log.")
def show(incident: str, directory: Path, database_url: str | None, as_json: bool, full: bool) -> None:
    """Show an INCIDENT: phases, timeline, decisions, evidence.

    \b
        holdfast show last
        holdfast show 3 --full

    INCIDENT is its number in `holdfast incidents`, last, an id or the beginning of one.
    """
    name = checked_incident(incident)
    found = read(reader_url(directory, database_url), lambda connection: _fetch(connection, name))
    click.echo(json_text(found, indent=2) if as_json else "\n".join(_in_words(found, full)))


async def _fetch(connection: Connection, name: str) -> dict[str, Any]:
    key = await full_id(connection, name)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        truth = await connection.fetchrow(_RECORD, key)
        recorded = await connection.fetchrow(_INCIDENT, key)
        about = dict(recorded or {}) | (_columns_of_truth(dict(truth)) if truth else {})
        generations = await connection.fetch(_GENERATIONS, about["job"], key)
        phases = await connection.fetch(_PHASES, about["job"], key)
        timeline = await connection.fetch(_TIMELINE, key)
        groups = await connection.fetch(_GROUPS, key)
        evidence = await connection.fetch(_EVIDENCE, key)
        diagnosis = await connection.fetchrow(_DIAGNOSIS, key)
        number = (await numbers_of(connection, [key])).get(key)
        kept_every = await connection.fetchval(_KEPT, about["job"], about["opened_at"])
    return {
        "incident": about | {"incident": key, "number": number, "kept_every": kept_every or 1},
        "diagnosis": dict(diagnosis) if diagnosis else None,
        "generations": as_dicts(generations),
        "phases": as_dicts(phases),
        "groups_evicted": as_dicts(groups),
        "timeline": as_dicts(timeline),
        "evidence": [row["body"] for row in evidence],
    }


def _columns_of_truth(row: dict[str, Any]) -> dict[str, Any]:
    columns = {name: row[name] for name in ("job", "opened_at", "closed_at", "symptom", "summary", "attempts")}
    return columns | {"outcome": row["outcome"] or "open"}


def _in_words(found: dict[str, Any], full: bool) -> list[str]:
    about = found["incident"]
    lines = [
        f"Incident {about['number']} ({about['incident']}) of job {cell(about['job'])}: {cell(about['outcome'])}",
        f"  {cell(about['symptom'])}: {cell(about.get('summary'))}",
        f"  opened {cell(about['opened_at'])}, closed {cell(about['closed_at'])}, attempts {about['attempts']}, "
        f"nodes evicted {cell(about.get('nodes_evicted'))}",
    ]
    if (lost := about.get("lost_steps", 0)) is None or lost:
        lines.append(f"  steps lost: {steps_lost(lost)}{_kept(about['kept_every'])}")
    lines += [f"  {text}" for text in _sources(found["generations"])]
    if about.get("seconds_to_recover") is not None:
        between_s = sum(row["seconds"] for row in found["phases"] if row["phase"] == TRAINING)
        of_it = f", {seconds(between_s)} s of it training between attempts" if between_s else ""
        lines.append(f"  from the fault until training resumed: {seconds(about['seconds_to_recover'])} s{of_it}")
    lines += [f"  {_group(group)}" for group in found["groups_evicted"]]
    if found["diagnosis"]:
        lines += ["", *_diagnosis(found["diagnosis"])]
    if not found["timeline"]:
        return [*lines, "", "The historian has not recorded it yet: try again in a moment, or see `holdfast status`."]
    if found["generations"]:
        lines += ["", "Seconds per phase", phases_table(found["phases"], found["generations"])]
    lines += ["", "Timeline (seconds since the first evidence)", _timeline(found["timeline"])]
    for body in found["evidence"]:
        lines += ["", *_evidence(body, full)]
    lines += ["", f"More: holdfast sql \"select * from historian.events where incident = '{about['incident']}'\""]
    return lines


def _kept(every: int) -> str:
    return f" ({one_in(every)} was kept in memory)" if every > 1 else ""


def _sources(generations: list[dict[str, Any]]) -> list[str]:
    """Return in words where the numbers of steps come from, in each generation that has made one."""
    words = {row["generation"]: steps_from(row["step_source"], row["step_source_name"]) for row in generations}
    return [f"steps of generation {generation}: {text}" for generation, text in words.items() if text]


def _group(group: dict[str, Any]) -> str:
    """Return what it cost to evict several nodes for the fault of one."""
    number = len(group["nodes"])
    evicted = f"{number} nodes evicted together" if number > 1 else f"{cell(group['nodes'])} evicted and tested"
    if group["tested_at"] is None:
        return f"{evicted}; {'their' if number > 1 else 'its'} tests are not over"
    at_fault = cell(group["at_fault"]) if group["at_fault"] else "no node"
    return (
        f"{evicted}: {at_fault} at fault, {len(group['cleared'])} back and {len(group['in_doubt'])} in doubt after "
        f"{seconds(group['took_s'])} s; the pool lacked {seconds(group['pool_s'])} node-seconds"
    )


def _diagnosis(one: dict[str, Any]) -> list[str]:
    """Return the cause in words: the newest conclusion, and what it rests on."""
    about = [one["symptom"], f"row {one['table_one']}" if one["table_one"] else "", f"root {one['root']}"]
    about += [f"{one['proof']} of {one['node']}" if one["proof"] else "", f"rule {one['rule']}"]
    lines = [f"Diagnosis: {', '.join(cell(word) for word in about if word)}, confidence {one['confidence'] or 0:.2f}"]
    lines.append(f"  {cell(one['reason'])}")
    lines += [f"  {cell(one['advice'])}"] if one["advice"] else []
    # A restart that fails in the same way adds the same lines.
    return lines + [f"  | {cell(line)}" for line in dict.fromkeys(one["lines"] or ())]


def _timeline(events: list[dict[str, Any]]) -> str:
    return render(
        ["SECONDS", "CLASS", "TYPE", "NODE", "WHAT"],
        [(seconds(row["seconds"]), row["class"], row["type"], row["node"], row["what"]) for row in events],
    )


def _evidence(body: dict[str, Any], full: bool) -> list[str]:
    title = f"Rank {cell(body.get('rank'))} on {cell(body.get('node'))}"
    lines: list[str] = []
    exception = body.get("exception")
    if exception:
        lines += [f"{title}: traceback", *_indented(exception.get("traceback", ""), None)]
    tail = str(body.get("log_tail", ""))
    if tail.strip():
        lines += [f"{title}: end of its log", *_indented(tail, None if full else LOG_LINES_SHOWN)]
    return lines or [f"{title}: no traceback and no log"]


def _indented(text: str, lines_max: int | None) -> list[str]:
    # Split at line feeds only: other Unicode line breaks may move the cursor, and are escaped.
    lines = text.rstrip("\n").split("\n")
    shown = lines
    if lines_max is not None and len(lines) > lines_max:
        shown = end_of_output(text, lines_max).split("\n")
    left_out = [f"  ... {len(lines) - len(shown)} lines omitted; --full shows them"] if len(shown) < len(lines) else []
    return left_out + [f"  {printable(line, keep=chr(9))}" for line in shown]
