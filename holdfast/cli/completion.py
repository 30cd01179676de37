"""Completion of names in a shell: jobs, incidents and nodes of the cluster that the command line so far means."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.embedded.layout import DIRECTORY_VARIABLE

WITHIN_S = 2.0
"""A person waits for it at the prompt."""
_SHOWN_MAX = 50

_OF_JOBS = "select key as name, phase as about from controller.jobs"
_OF_NODES = "select key as name, state as about from standby.nodes"
_OF_SERVICES = """
select name, 'service' as about
from unnest(array['controller', 'analyzer', 'standby', 'ckpt', 'historian', 'nats', 'postgres', 'supervisor']) name
"""
_OF_INCIDENTS = """
select number::text as name, concat_ws(': ', it.job, it.symptom) as about
from ({numbered}) n left join controller.incidents it using (key)
union all select 'last', 'the newest one'
"""
_QUERIES = {
    "job": _OF_JOBS,
    "node": _OF_NODES,
    "incident": _OF_INCIDENTS,
    "service": f"{_OF_JOBS} union all {_OF_SERVICES} union all {_OF_NODES}",
}
"""Query that completes an argument or option, by its name."""


class KnownName(click.types.StringParamType):
    """A name that a shell completes; `kind` is that of the argument."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # What is wrong with the cluster is no message for a prompt.
        try:
            found = asyncio.run(asyncio.wait_for(_read(ctx.params, self._kind, incomplete), WITHIN_S))
        except (click.ClickException, OSError, TimeoutError):
            return []
        return [CompletionItem(name, help=about) for name, about in found]


def with_known_names(command: click.Command) -> click.Command:
    """Have arguments and options of a command, and of those below it, complete the names that a cluster knows."""
    for param in command.params:
        if param.name in _QUERIES and param.type is click.STRING:
            param.type = KnownName(param.name)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            with_known_names(below)
    return command


async def _read(params: dict[str, Any], kind: str, begins: str) -> list[tuple[str, str]]:
    # Imported here: no other command line needs them before it runs.
    from holdfast.cli.connect.addresses import reader_url
    from holdfast.cli.connect.database import reading, working
    from holdfast.cli.connect.directory import found_directory
    from holdfast.cli.incident_ids import NUMBERED

    query = _QUERIES[kind].format(numbered=NUMBERED)
    directory = params.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or found_directory()
    url = reader_url(Path(directory), params.get("database_url"))
    limited = f"select name, about from ({query}) it where starts_with(name, $1) order by name limit {_SHOWN_MAX}"
    async with reading(url) as connection, working(url):
        return [(row["name"], row["about"] or "") for row in await connection.fetch(limited, begins)]
