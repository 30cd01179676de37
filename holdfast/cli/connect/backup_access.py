"""The database of commands that back it up and restore it."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from holdfast.cli.connect.command_tls import private_url
from holdfast.cli.connect.directory import cluster_errors
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterInfo
from holdfast.embedded.servers.postgres import programs
from holdfast.network.trust import asks_for_tls

admin_url_option = click.option(
    "--database-url",
    envvar="HOLDFAST_ADMIN_DATABASE_URL",
    show_envvar=True,
    help="URL with the role of a superuser, for a database outside of a cluster's directory.",
)


def admin_url(directory: Path, given: str | None) -> str:
    """Return the given URL, or that of the cluster in `directory`. Raises ClickException if there is none, or if it
    would be reached in plain text.
    """
    if given:
        return private_url(given)
    with cluster_errors():
        return ClusterInfo.load(directory).database_urls["admin"]


def postgres_programs(url: str) -> Path:
    """Return the directory of pg_dump and pg_restore for a database. Raises ClickException if there is none."""
    if asks_for_tls(url):
        return _with_tls()
    try:
        return programs()
    except EmbeddedError as error:
        found = shutil.which("pg_dump")
        if found is None:
            raise click.ClickException(f"{error} Or install PostgreSQL's client programs.") from error
        return Path(found).parent


def _with_tls() -> Path:
    found = shutil.which("pg_dump")
    if found is None:
        raise click.ClickException(
            "the database's address asks for TLS, which the pg_dump that Holdfast brings does not speak: install "
            "PostgreSQL's client programs, of the server's version or newer, so that pg_dump is found (PATH)"
        )
    return Path(found).parent
