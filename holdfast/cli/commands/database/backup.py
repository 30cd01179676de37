"""`holdfast backup`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.connect.backup_access import admin_url, admin_url_option, postgres_programs
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.values import FilePath
from holdfast.store import dump


@click.command()
@click.argument("file", type=FilePath(path_type=Path))
@directory_option
@admin_url_option
def backup(file: Path, directory: Path, database_url: str | None) -> None:
    """Write the whole database to FILE, while everything runs: the record, and the state of jobs and nodes.

    \b
        holdfast backup /backups/holdfast-$(date +%F).dump

    Only this user can read FILE: it contains the jobs' environment variables. Checkpoints are not in it.
    """
    if file.exists():
        raise click.ClickException(f"{file} exists: name a new file")
    try:
        url = admin_url(directory, database_url)
        size_bytes = dump.write(postgres_programs(url), url, file)
    except dump.DumpFailed as error:
        raise click.ClickException(f"the database cannot be backed up: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or file} cannot be written: {error.strerror}") from error
    click.echo(f"{file}: {size_bytes / 1e6:.1f} MB; `holdfast restore {file}` brings it back")
