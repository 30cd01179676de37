"""`holdfast top`: a cluster as it is now, drawn again each second."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from holdfast.cli.connect.connect_options import cluster_options, json_option
from holdfast.cli.doctor.whereabouts import whereabouts
from holdfast.cli.output.tables import json_text
from holdfast.cli.top.cluster_snapshot import Snapshot
from holdfast.cli.top.screen import plain
from holdfast.cli.top.top_reader import TopReader


@click.command()
@cluster_options
@click.option("--once", is_flag=True, help="Print it once and end, as it does where the output is no terminal.")
@json_option
def top(directory: Path, nats_url: str | None, database_url: str | None, once: bool, as_json: bool) -> None:
    """Watch a cluster: jobs, the newest incidents with their phases, complaints of the doctor, nodes.

    \b
        holdfast top
        holdfast top --once | grep llama-7
        holdfast top --json | jq '.details.jobs'

    Jobs: step, pace, loss, ETTR (productive share of their time), steps lost, open incident. Nodes that need a look
    come first: lost, evicted, not ready, with alerts; what does not fit is counted. It reads what `holdfast status`
    and `holdfast doctor` read, the step each second and the rest more rarely. q or Ctrl-C ends it.

    Exit codes: 0; with --once and --json 1 if the database does not answer.
    """
    where = whereabouts(directory, nats_url, database_url)
    reader = TopReader(where)
    if as_json or once or not sys.stdout.isatty():
        found = asyncio.run(_once(reader))
        click.echo(json_text(found, indent=2) if as_json else plain(found))
        sys.exit(1 if found.problems else 0)
    # Imported here: it takes a tenth of a second, and a terminal.
    from holdfast.cli.top.terminal import show_live

    asyncio.run(show_live(reader))


async def _once(reader: TopReader) -> Snapshot:
    try:
        return await reader.read_all()
    finally:
        await reader.close()
