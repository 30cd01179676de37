"""`holdfast doctor`: what is wrong with a cluster, and what to do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.connect.connect_options import cluster_options, json_option
from holdfast.cli.doctor.cluster_findings import findings_of
from holdfast.cli.doctor.facts import Facts
from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.odds_lines import odds_lines
from holdfast.cli.doctor.reading_all import read_cluster
from holdfast.cli.doctor.whereabouts import whereabouts
from holdfast.cli.output.tables import json_text, printable

FOUND, COULD_NOT_LOOK = 1, 2


@click.command()
@cluster_options
@json_option
def doctor(directory: Path, nats_url: str | None, database_url: str | None, as_json: bool) -> None:
    """Look for what is wrong with a cluster, and name the cause and the cure.

    \b
        holdfast doctor
        holdfast doctor --json | jq '.findings[] | select(.severity == "error")'

    It reads, and changes nothing: services and agents that do not answer, messages that the bus does not take or has
    lost, consumers that lag, dead letters, jobs that are stuck or would lose a step with one machine, clocks, disks.
    Postgres, NATS or any service may be away: that is a finding. It takes some four seconds, and half a minute at most.

    Exit codes: 0 nothing is wrong, 1 something is, 2 it could not look.
    """
    try:
        facts = asyncio.run(read_cluster(whereabouts(directory, nats_url, database_url)))
    except click.ClickException as error:
        error.show()
        sys.exit(COULD_NOT_LOOK)
    found = findings_of(facts)
    click.echo(json_text(_as_data(facts, found), indent=2) if as_json else _text(facts, found))
    sys.exit(FOUND if found else 0)


def _as_data(facts: Facts, found: list[Finding]) -> dict[str, Any]:
    return {"at": facts.at, "findings": found, "facts": facts}


def _text(facts: Facts, found: list[Finding]) -> str:
    if not found:
        return "\n".join([f"Nothing is wrong. {_looked_at(facts)}", *odds_lines(facts)])
    parts = []
    for finding in found:
        parts.append(printable(f"{finding.severity.upper()}  {finding.about}: {finding.what}"))
        parts.append(printable(f"    cure: {finding.cure}"))
    return "\n".join([*parts, "", _looked_at(facts), *odds_lines(facts)])


def _looked_at(facts: Facts) -> str:
    bus, database = facts.bus, facts.database
    parts = [
        "Postgres" if database else "Postgres (away)",
        "NATS" if bus else "NATS (away)",
        *([f"{len(facts.processes)} processes"] if facts.processes else []),
        *([f"{len(database.nodes)} nodes", f"{len(database.jobs)} jobs"] if database else []),
        f"{len(facts.disks)} disks",
    ]
    return f"Looked at: {', '.join(parts)}."
