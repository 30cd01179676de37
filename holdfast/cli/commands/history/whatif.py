"""`holdfast whatif`: what another policy would have decided on recorded evidence."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.connect.addresses import as_of_now, reader_url
from holdfast.cli.connect.command_tls import private_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, read
from holdfast.cli.incident_ids import checked_incident, full_id, number_or_id, numbers_of
from holdfast.cli.output.duration import Duration
from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import cell, json_text

_JOB = "select job from historian.incidents where incident = $1::uuid"
_PROCESS = (sys.executable, "-P", "-m", "holdfast_controller.backtest")

SHOWN_MAX = 20
CHARS_MAX = 200
_RESPONSES = {
    "reattempt": "restart in place",
    "eviction": "evict",
    "checks_started": "stop-time checks",
    "replay_started": "dual-phase replay",
    "rollback": "roll back the code",
    "suspension": "pause",
    "job_stopping": "stop the job",
    "": "nothing",
}


@click.command()
@click.argument("incident", required=False)
@click.option("--job", help="Only this job.")
@click.option("--since", type=Duration(), help="Jobs with an incident in this time, such as 30d. Default: all.")
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False),
    help="TOML file with the settings to try, as in holdfast.toml.",
)
@click.option(
    "--was",
    type=click.Path(exists=True, dir_okay=False),
    help="TOML file with the settings that were in force. Default: the present ones.",
)
@reading_options
def whatif(
    incident: str | None,
    job: str | None,
    since: float | None,
    policy: str | None,
    was: str | None,
    directory: Path,
    database_url: str | None,
    as_json: bool,
) -> None:
    """Decide recorded failures again under another policy, and show where the decisions part.

    \b
        holdfast whatif --since 30d --policy cautious.toml
        holdfast whatif 0199a5c2 --policy cautious.toml
        holdfast whatif --job gpt-1

    The controller's planner gets the recorded events of a job again, in the order in which it handled them: once under
    the settings that were in force, once with those of the policy in their place. Where their decisions differ, what
    would have followed is not known; the comparison goes on once the job trains again. Costs after a parting are
    those of the record, beside the median of such responses in it.

    A policy has settings of [timeouts], [ladder], [mechanisms], [hang], [code], [record] and [warm_up]. Without
    --policy the command checks that the recorded decisions follow from the settings.

    Exit codes: 0 the recorded decisions follow from the settings; 1 an error; 3 some do not, for example because
    settings were others then (--was).
    """
    if incident and (job or since):
        raise click.UsageError("INCIDENT names one job: leave out --job and --since")
    url = reader_url(directory, database_url)
    only = None
    if incident:
        name = checked_incident(incident)
        only, job = read(url, lambda connection: _incident(connection, name))
    found = _backtest(url, _flags(job, since, policy, was))
    if job and not found["jobs"]:
        raise click.ClickException(f"the record has no training job named {job}; `holdfast incidents` lists incidents")
    for tested in found["jobs"]:
        if only:
            tested["partings"] = [parting for parting in tested["partings"] if parting["incident"] == only]
    partings = [parting for tested in found["jobs"] for parting in tested["partings"] if parting["incident"]]
    if partings:
        numbers = read(url, lambda connection: numbers_of(connection, [parting["incident"] for parting in partings]))
        for parting in partings:
            parting["incident_number"] = numbers.get(parting["incident"])
    click.echo(json_text(found, indent=2) if as_json else "\n".join(_in_words(found, policy)))
    if any(tested["not_reproduced"] for tested in found["jobs"]):
        sys.exit(3)


async def _incident(connection: Connection, name: str) -> tuple[str, str]:
    key = await full_id(connection, name)
    job = await connection.fetchval(_JOB, key)
    if job is None:
        raise click.ClickException(f"the events of incident {key} are no longer in the record")
    return key, job


def _flags(job: str | None, since: float | None, policy: str | None, was: str | None) -> list[str]:
    began = (datetime.now(UTC) - timedelta(seconds=since)).isoformat() if since else None
    given = {"--job": job, "--since": began, "--policy": policy, "--was": was}
    return [word for flag, value in given.items() if value for word in (flag, value)]


def _backtest(url: str, flags: list[str]) -> dict[str, Any]:
    environment = os.environ | {"HOLDFAST_DATABASE_URL": private_url(as_of_now(url))}
    process = subprocess.Popen(
        (*_PROCESS, *flags), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    errors = []
    with process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            try:
                progress = msgspec.json.decode(line)
            except msgspec.DecodeError:
                errors.append(line.decode(errors="replace"))
                continue
            if sys.stderr.isatty():
                text = f"reading {cell(progress['job'])}, {progress['number']} of {progress['jobs']} jobs"
                click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
        if sys.stderr.isatty():
            click.echo("\r\x1b[2K", err=True, nl=False)
        output = process.stdout.read()
    if process.returncode:
        raise click.ClickException("".join(errors).strip() or f"the backtest ended with {process.returncode}")
    found: dict[str, Any] = msgspec.json.decode(output)
    return found


def _in_words(found: dict[str, Any], policy: str | None) -> list[str]:
    lines = []
    if policy and not found["changed"]:
        lines.append(f"{policy} has the settings that are in force already.")
    for it in found["changed"]:
        lines.append(f"{it['key']} = {json_text(it['instead'])} in place of {json_text(it['was'])}")
    if not found["jobs"]:
        lines.append("No job matches.")
    for tested in found["jobs"]:
        lines += ["", *_job(tested, bool(policy))]
        for number, parting in enumerate(tested["partings"][:SHOWN_MAX], start=1):
            lines += ["", *_parting(number, parting)]
        if (more := len(tested["partings"]) - SHOWN_MAX) > 0:
            lines.append(f"and {more} more; --json has all")
    if any(tested["partings"] for tested in found["jobs"]):
        lines += [
            "",
            "Not known: what would have followed from another decision. The recorded seconds count to the end of the",
            "incident; the others are the median of such responses in the same record, whatever they answered.",
        ]
    return lines


def _job(tested: dict[str, Any], compares: bool) -> list[str]:
    lines = [
        f"Job {cell(tested['job'])}: {tested['reproduced']} of {tested['decisions']} recorded decisions follow from"
    ]
    lines[0] += f" the settings and {tested['inputs']} recorded inputs."
    if tested["unreadable"]:
        lines.append(f"  {tested['unreadable']} events are of a version that this one cannot read, and are left out.")
    if missing := tested["not_reproduced"]:
        lines.append(f"  {len(missing)} inputs lead to other decisions than recorded. Settings may have been others")
        lines.append("  (--was), or another version decided. The first:")
        lines += [f"  {line}" for line in _difference(missing[0], "recorded", "reproduced")]
    if compares:
        count = len(tested["partings"])
        lines.append(f"  Under the policy {count} decision{' differs' if count == 1 else 's differ'}.")
    return lines


def _parting(number: int, parting: dict[str, Any]) -> list[str]:
    cost = parting["cost"]
    incident = "no incident"
    if parting["incident"]:
        incident = f"incident {number_or_id(parting['incident'], parting['incident_number'])}"
    recorded = f"{cost['recorded_s']:.1f} s" if cost["recorded_s"] is not None else "the incident did not end"
    recorded += f", {cost['recorded_machines']} machines, steps lost: {steps_lost(cost['lost_steps'])}"
    other = f"{cost['estimated_machines']} machines"
    if cost["estimated_s"] is not None:
        other = f"about {cost['estimated_s']:.1f} s (median of {cost['estimated_from']}), {other}"
    elif parting["response_instead"]:
        other = f"no such response in the record, {other}"
    return [
        f"{number}. {incident}, {cell(parting['phase'])}",
        *(f"   {line}" for line in _difference(parting, "recorded", "instead")),
        f"   recorded: {_RESPONSES[parting['recorded_response']]}: {recorded}",
        f"   instead:  {_RESPONSES[parting['response_instead']]}: {other}",
    ]


def _difference(of: dict[str, Any], one: str, other: str) -> list[str]:
    cause = of["cause"]
    at = of["at"].replace("T", " ")[:23]
    lines = [f"{at} {_short(cause)}" if cause else f"{at} time passed"]
    texts = {name: [_short(event) for event in of[name]] for name in (one, other)}
    if texts[one] and sorted(texts[one]) == sorted(texts[other]):
        # An earlier version did not record all that this one does.
        return [*lines, *(f"  both: {text}" for text in texts[one]), "  They differ in other fields."]
    for name, unlike in ((one, other), (other, one)):
        lines += [f"  {name}: {text}" for text in texts[name] if text not in texts[unlike]] or [f"  {name}: nothing"]
    return lines


def _short(event: dict[str, Any]) -> str:
    text = f"{cell(event['type'])}: {cell(event['what'])}"
    return text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}..."
