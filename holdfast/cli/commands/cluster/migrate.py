"""`holdfast migrate`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.store import migrate as migration

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


@click.command()
@click.option(
    "--database-url", envvar="HOLDFAST_ADMIN_DATABASE_URL", required=True, help="Address with a superuser's role."
)
@click.option(
    "--passwords",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="HOLDFAST_ROLE_PASSWORDS",
    required=True,
    help=f"Folder with one file for each role ({', '.join(ROLES)}) holding its password.",
)
def migrate(database_url: str, passwords: Path) -> None:
    """Bring a database to this version's schema, and set the passwords of the services' roles.

    `holdfast up` does this by itself; for a Postgres of your own, run it before the services start. Running it
    again changes nothing.
    """
    try:
        secrets = {f"holdfast_{role}": (passwords / role).read_text().strip() for role in ROLES}
    except OSError as error:
        raise click.ClickException(f"cannot read a role's password: {error}") from error
    try:
        migration.migrate(database_url, secrets)
    except migration.UnknownRevision as error:
        raise click.ClickException(str(error)) from error
    click.echo("the database is at this version's schema")
