"""`holdfast migrate`."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import click
from sqlalchemy.exc import SQLAlchemyError

from holdfast.cli.connect.command_tls import private_url
from holdfast.cli.values import FilePath
from holdfast.store.upgrade import migrate as migration
from holdfast.store.upgrade.blockers import HeldUp

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


@click.command()
@click.option(
    "--database-url", envvar="HOLDFAST_ADMIN_DATABASE_URL", required=True, help="URL with the role of a superuser."
)
@click.option(
    "--passwords",
    type=FilePath(exists=True, file_okay=False, path_type=Path),
    envvar="HOLDFAST_ROLE_PASSWORDS",
    required=True,
    help=f"Folder with one file for each role ({', '.join(ROLES)}) holding its password.",
)
def migrate(database_url: str, passwords: Path) -> None:
    """Upgrade a database to the schema of this version, and set the passwords of the services' roles.

    \b
        URL="postgresql://postgres@db/holdfast?sslmode=verify-full"
        holdfast migrate --database-url "$URL" --passwords /run/secrets/roles

    `holdfast up` does this itself. With a separate Postgres server, run it before the services start. Running it again
    changes nothing.
    """
    try:
        secrets = {f"holdfast_{role}": (passwords / role).read_text().strip() for role in ROLES}
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read a role's password: {error}") from error
    try:
        migration.migrate(private_url(database_url), secrets)
    except (migration.UnknownRevision, HeldUp) as error:
        raise click.ClickException(str(error)) from error
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise click.ClickException(f"the database cannot be upgraded: {error}") from error
    click.echo("the database has the schema of this version")
