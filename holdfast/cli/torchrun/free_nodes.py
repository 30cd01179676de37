"""The number of nodes for `--nnodes MIN:MAX`: what is free when the job is submitted."""

from __future__ import annotations

import asyncpg
import click
import msgspec

from holdfast.cli.connect.database import Connection, read
from holdfast.events.parts.job import JobSpec

_FREE = "select count(*) as free from standby.nodes where state = 'standby'"


def on_free_nodes(spec: JobSpec, most: int, database_url: str) -> JobSpec:
    """Return the job on as many nodes as are free, from its own number to `most`. Raises click.ClickException."""

    async def fetch(connection: Connection) -> list[asyncpg.Record]:
        return await connection.fetch(_FREE)

    fewest = spec.nnodes
    free = int(read(database_url, fetch)[0]["free"])
    nnodes = min(most, max(fewest, free))
    click.echo(
        f"[holdfast] --nnodes {fewest}:{most}: {free} nodes are free, the job runs on {nnodes}. This number stays: a "
        "node that is lost is replaced by a standby, or the job waits until one comes; it does not go on with fewer",
        err=True,
    )
    try:
        return msgspec.structs.replace(spec, nnodes=nnodes)
    except ValueError as error:
        raise click.ClickException(f"{error}: give the number of nodes that fits, as --nnodes N") from error
