"""The database of commands that back it up and restore it."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from holdfast.cli.connect.directory import cluster_errors
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterInfo
from holdfast.embedded.servers.postgres import programs

admin_url_option = click.option(
    "--database-url",
    envvar="HOLDFAST_ADMIN_DATABASE_URL",
    show_envvar=True,
    help="URL with the role of a superuser, for a database outside of a cluster's directory.",
)


def admin_url(directory: Path, given: str | None) -> str:
    """Return the given URL, or that of the cluster in `directory`. Raises ClickException if there is none."""
    if given:
        return given
    with cluster_errors():
        return ClusterInfo.load(directory).database_urls["admin"]


def postgres_programs() -> Path:
    """Return the directory of pg_dump and pg_restore. Raises ClickException if there is none."""
    try:
        return programs()
    except EmbeddedError as error:
        found = shutil.which("pg_dump")
        if found is None:
            raise click.ClickException(f"{error} Or install PostgreSQL's client programs.") from error
        return Path(found).parent
