"""`holdfast connect`: how tools reach the bus and the database, as the reader."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import click

from holdfast.cli.connect.addresses import reader_access
from holdfast.cli.connect.directory import cluster_errors, directory_option
from holdfast.cli.connect.reader import RECEIVED, ReaderAccess
from holdfast.cli.output.tables import json_text
from holdfast.cli.values import FilePath
from holdfast.embedded.layout import write_private

_DESCRIPTION = "asyncapi.yaml"


@click.command()
@directory_option
@click.option("--env", "form", flag_value="env", help="Print lines for a shell; `nats`, `psql` and libpq read them.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--dsn", "form", flag_value="dsn", help="Print the address of Postgres alone.")
@click.option(
    "--output",
    "-o",
    type=FilePath(dir_okay=False, path_type=Path),
    help="Write into this file, which only its owner can read, and print nothing.",
)
def connect(directory: Path, form: str | None, output: Path | None) -> None:
    """Print how a tool reads this cluster: addresses of NATS and Postgres with the reader's passwords.

    \b
        holdfast connect
        eval "$(holdfast connect --env)"; nats sub 'holdfast.v1.decision.>'
        psql "$(holdfast connect --dsn)" -c 'select * from historian.incidents'

    The reader receives events as they happen and reads the record. It can publish and write nothing. Any person or
    program with its passwords can do the same: `holdfast credentials renew reader` replaces them.

    Exit codes: 0, or 1 if there is no cluster, or if a setting names a user who may write.
    """
    access = reader_access(directory)
    text = _FORMS[form](access)
    if output is None:
        click.echo(text, nl=False)
        return
    with cluster_errors():
        write_private(output, text.encode(), durable=False)


def _json(access: ReaderAccess) -> str:
    return json_text(access.as_data(str(_description())), indent=2) + "\n"


def _description() -> Path:
    """Return the AsyncAPI file: beside the package in a wheel, in `docs` of a checkout."""
    package = Path(str(files("holdfast")))
    shipped = package / _DESCRIPTION
    return shipped if shipped.exists() else package.parent / "docs" / _DESCRIPTION


def _text(access: ReaderAccess) -> str:
    data = access.as_data(str(_description()))
    lines = [f"NATS      {access.nats_url}", f"Postgres  {access.database_url}"]
    if tls := data["nats"]["tls"]:
        lines.append(f"TLS       {', '.join(f'{name} {path}' for name, path in tls.items())}")
    lines += [
        f"Events    {data['asyncapi']}",
        "",
        "These are the reader's passwords: keep them to those who may read all that is recorded.",
        f"On NATS the reader subscribes to {RECEIVED} (events, log lines, heartbeats) and publishes nothing.",
        "In Postgres it reads all but the secrets of jobs, and writes nothing; `holdfast sql` lists the views.",
        "",
        'eval "$(holdfast connect --env)"     # then `nats sub` and `psql` need no flags; --json for programs',
    ]
    return "\n".join(lines) + "\n"


_FORMS: dict[str | None, Callable[[ReaderAccess], str]] = {
    None: _text,
    "env": ReaderAccess.exports,
    "json": _json,
    "dsn": lambda access: access.database_url + "\n",
}
