"""`holdfast jobs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, as_dicts, read
from holdfast.cli.names import require_name
from holdfast.cli.output.kept_steps import one_in
from holdfast.cli.output.open_claims import OpenClaim, open_claims
from holdfast.cli.output.pace import pace_text
from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import cell, json_text, printable, render
from holdfast.cli.output.unknown_job import unknown_job
from holdfast.cli.values import WholeNumber

# The controller has a job's present state, the historian its past. The controller also counts a generation when ranks
# end; for a job that has ended, the last generation that ran is shown.
_JOBS = """
select c.key as job, c.phase,
       case when c.exit_code is null then c.generation else coalesce(g.generation, c.generation) end as generation,
       h.last_step, h.step_source, h.incidents, h.lost_steps, c.submitted_at, h.finished_at, c.exit_code, h.script,
       array(select jsonb_array_elements_text(g.body->'nodes')) as nodes,
       case when c.phase = 'waiting' then p.body->>'reason' else f.body->>'reason' end as reason
from (select key, phase, generation, submitted_at, exit_code
      from controller.jobs where $2::text is null or key = $2 order by submitted_at desc limit $1) c
left join lateral (select * from historian.jobs h where h.job = c.key limit 1) h on true
left join lateral (
    select e.generation, e.body from historian.events e
    where e.type = 'generation_started' and e.job = c.key order by e.generation desc limit 1
) g on true
left join lateral (
    select e.body from historian.events e where e.type = 'job_finished' and e.job = c.key order by e.at desc limit 1
) f on true
left join lateral (
    select e.body from historian.events e where e.type = 'suspension' and e.job = c.key order by e.at desc limit 1
) p on c.phase = 'waiting'
order by c.submitted_at desc
"""
_PACE = """
select step_s, tokens_per_s, mfu from historian.throughput where job = $1 and generation = $2 order by at desc limit 1
"""
_PACE_NAMES = ("step_s", "tokens_per_s", "mfu")
_KEPT = """
select (body->'kept'->>'every')::bigint as kept_every, body->'kept'->>'reason' as kept_why
from ckpt.plans where key = $1 and generation = $2
"""
_KEPT_NAMES = ("kept_every", "kept_why")
# A restarted agent reports all its ranks again.
_RANKS = """
select distinct on (r.rank) r.rank, e.node, r.pid, e.at as started_at
from historian.events e cross join lateral jsonb_to_recordset(e.body->'ranks') as r(rank bigint, pid bigint)
where e.type = 'ranks_started' and e.job = $1 and e.generation = $2
order by r.rank, e.at desc
"""


@click.command()
@click.argument("job", required=False)
@reading_options
@click.option("--limit", type=WholeNumber(min=1), default=50, show_default=True, help="Number of jobs to show.")
def jobs(job: str | None, directory: Path, database_url: str | None, as_json: bool, limit: int) -> None:
    """List the jobs, newest first: phase, generation, last step, incidents, steps trained twice, reason for waiting.

    \b
        holdfast jobs
        holdfast jobs llama-7

    With JOB, show everything that is known about one job, with the node and process id of each rank.
    """
    if job is not None:
        require_name(job, "job name")

    async def fetch(connection: Connection) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        claims = await open_claims(connection)
        rows = as_dicts(await connection.fetch(_JOBS, limit, job))
        if job is not None and not rows:
            raise await unknown_job(connection, job)
        for row in rows:
            row["waits"] = claims.get(row["job"])
        if job is None:
            return rows, []
        pace = await connection.fetchrow(_PACE, job, rows[0]["generation"])
        rows[0] |= dict.fromkeys(_PACE_NAMES) if pace is None else dict(pace)
        kept = await connection.fetchrow(_KEPT, job, rows[0]["generation"])
        rows[0] |= dict.fromkeys(_KEPT_NAMES) if kept is None else dict(kept)
        return rows, as_dicts(await connection.fetch(_RANKS, job, rows[0]["generation"]))

    rows, ranks = read(reader_url(directory, database_url), fetch)
    if job is not None:
        click.echo(json_text(rows[0] | {"ranks": ranks}, indent=2) if as_json else _about(rows[0], ranks))
    elif as_json:
        click.echo(json_text(rows, indent=2))
    elif not rows:
        click.echo("no jobs yet: submit one with `holdfast run`")
    else:
        click.echo(_table(rows))


def _table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name not in ("reason", "waits", "step_source")]
    headers = [*(name.upper().replace("_", " ") for name in names), "WHY"]
    return render(headers, [[*(_value(row, name) for name in names), _why(row)] for row in rows])


def _about(row: dict[str, Any], ranks: list[dict[str, Any]]) -> str:
    names = [name for name in row if name not in ("job", "reason", "waits", *_PACE_NAMES, *_KEPT_NAMES)]
    width = max(map(len, names)) + 2
    lines = [
        f"Job {row['job']}",
        *(f"  {name.replace('_', ' ').ljust(width)}{cell(_value(row, name))}" for name in names),
    ]
    if pace := pace_text(*(row[name] for name in _PACE_NAMES)):
        lines.append(f"  {'pace'.ljust(width)}{pace}")
    if (every := row["kept_every"] or 1) > 1:
        lines.append(f"  {'keeps'.ljust(width)}{one_in(every)}: {printable(row['kept_why'])}")
    if why := _why(row):
        lines.append(f"  {'why'.ljust(width)}{printable(why)}")
    if ranks:
        table = render(["RANK", "NODE", "PID", "STARTED AT"], [list(rank.values()) for rank in ranks])
        what = "Ranks" if row["exit_code"] is None else "Last ranks"
        lines += ["", f"{what} (`holdfast logs {row['job']} --rank N`)", table]
    return "\n".join(lines)


def _value(row: dict[str, Any], name: str) -> Any:
    # Without any incident recorded, the historian has not written it yet.
    is_unknown = name == "lost_steps" and row["lost_steps"] is None and row["incidents"]
    return steps_lost(None) if is_unknown else row[name]


def _why(row: dict[str, Any]) -> str:
    """Return the reason for a job's phase, "" if the phase needs none."""
    waits: OpenClaim | None = row["waits"]
    if waits is not None:
        return str(waits)
    return row["reason"] or "" if row["phase"] in ("failed", "stopped", "waiting") else ""
