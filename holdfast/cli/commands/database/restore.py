"""`holdfast restore`."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import click
import sqlalchemy.exc

from holdfast.cli.connect.backup_access import admin_url, admin_url_option, postgres_programs
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.values import FilePath
from holdfast.clock import system_now
from holdfast.store import dump
from holdfast.store.upgrade.blockers import HeldUp
from holdfast.store.upgrade.migrate import UnknownRevision


@click.command()
@click.argument("file", type=FilePath(exists=True, dir_okay=False, path_type=Path))
@directory_option
@admin_url_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def restore(file: Path, directory: Path, database_url: str | None, yes: bool) -> None:
    """Put the backup in FILE in the place of the present database; the cluster may run meanwhile.

    \b
        holdfast restore /backups/holdfast-2026-11-23.dump

    The services start again with the state of the backup. Jobs of that state restart from their newest checkpoints,
    also from those in memory. Jobs submitted after it are unknown and end: submit them again. The record gets back all
    events that the bus still has (evidence of a day, decisions of 30 days). The present database stays in the server
    under the name that is printed.
    """
    url = admin_url(directory, database_url)
    programs = postgres_programs(url)
    try:
        dump.require_complete(programs, file)
        if not yes:
            click.confirm(f"Put {file} in the place of the present database?", abort=True)
        before = dump.restore(programs, url, file, system_now())
    except (dump.DumpFailed, UnknownRevision, HeldUp) as error:
        raise click.ClickException(f"{file} cannot be restored: {error}. Nothing has changed") from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, sqlalchemy.exc.DBAPIError, OSError) as error:
        raise click.ClickException(f"the database refuses or does not answer: {error}. Nothing has changed") from error
    click.echo(f"restored; the database before is now named {before}. Drop it once it is not needed any more")
