"""`holdfast sql`: queries on the recorded history, with a role that can only read."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import asyncpg
import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, read
from holdfast.cli.output.tables import cell, json_text, printable, render
from holdfast.cli.values import WholeNumber

ROWS_SHOWN = 1000

_CATALOGUE = """
select n.nspname || '.' || c.relname as name,
       case c.relkind when 'v' then 'view' else 'table' end as kind,
       coalesce(obj_description(c.oid, 'pg_class'), '') as holds
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('historian', 'controller', 'standby', 'ckpt', 'analyzer')
  and c.relkind in ('v', 'r', 'p') and not c.relispartition and c.relname not in ('inbox', 'outbox')
order by n.nspname <> 'historian', c.relkind <> 'v', 1
"""

# Postgres renders these itself: its calendar is wider than Python's.
_AS_TEXT = ("timestamptz", "timestamp", "date", "time", "timetz", "interval")


@click.command()
@click.argument("query", required=False)
@reading_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--limit", type=WholeNumber(min=1), help=f"Maximum number of rows. Default: {ROWS_SHOWN} for a table, else all."
)
def sql(
    query: str | None, directory: Path, database_url: str | None, as_json: bool, as_csv: bool, limit: int | None
) -> None:
    """Run a QUERY on the recorded history, in a transaction that cannot write.

    \b
        holdfast sql
        holdfast sql "select job, outcome, lost_steps from historian.jobs"
        holdfast sql --csv - < report.sql

    Without a QUERY, list the views and tables. "-" reads the query from standard input.

    Exit codes: 0 done, 1 the query failed.
    """
    if as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    url = reader_url(directory, database_url)
    if query == "-":
        query = sys.stdin.read()
    text = query or _CATALOGUE
    rows_max = limit or (None if as_json or as_csv else ROWS_SHOWN)
    names, rows, more = read(url, lambda connection: _fetch(connection, text, rows_max))
    if as_json:
        click.echo(json_text([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    elif as_csv:
        click.echo(_csv(names, rows), nl=False)
    else:
        click.echo(render([printable(name) for name in names], rows) if names else "done")
        if more:
            click.echo(f"only the first {rows_max} rows; --limit shows more", err=True)


async def _fetch(
    connection: Connection, query: str, rows_max: int | None
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    for name in _AS_TEXT:
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")
    try:
        async with connection.transaction(readonly=True):
            statement = await connection.prepare(query)
            names = [attribute.name for attribute in statement.get_attributes()]
            if rows_max is None:
                rows = [tuple(record) for record in await statement.fetch()]
            else:
                cursor = await statement.cursor()
                rows = [tuple(record) for record in await cursor.fetch(rows_max + 1)]
    except asyncpg.PostgresError as error:
        raise click.ClickException(_explained(error, query)) from error
    except asyncpg.InterfaceError as error:
        raise click.ClickException(f"{error}: QUERY takes no parameters; write the values into it") from error
    more = rows_max is not None and len(rows) > rows_max
    return names, rows[:rows_max], more


def _explained(error: asyncpg.PostgresError, query: str) -> str:
    """Return the server's message, the marked place in the query, and the server's hints."""
    lines = [str(error.args[0]) if error.args else type(error).__name__]
    position = getattr(error, "position", None)
    if position is not None:
        before = query[: int(position) - 1]
        row, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
        lines += [
            f"line {row + 1}: {query.splitlines()[row]}" if query else "",
            " " * (len(f"line {row + 1}: ") + column) + "^",
        ]
    lines += [f"{what}: {text}" for what in ("detail", "hint") if (text := getattr(error, what, None))]
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        lines.append("`holdfast sql` only reads")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        lines.append(
            "`holdfast sql` only reads, and not `body` of controller.jobs, job_changes, job_secrets and outbox, for "
            "the secrets of jobs: name the columns instead of *"
        )
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedColumnError):
        lines.append("`holdfast sql` without a query lists the views and tables")
    if isinstance(error, asyncpg.QueryCanceledError):
        lines.append("narrow it, for example with: where at > now() - interval '1 hour'")
    return "\n".join(printable(line) for line in lines)


def _csv(names: list[str], rows: Iterable[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_value(value) for value in row] for row in rows)
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json_text(value)
    return value if value is None or isinstance(value, str | int | float) else cell(value)
