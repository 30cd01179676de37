"""Where a command finds the database and the bus: named by hand, or those of the embedded cluster."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast import config
from holdfast.embedded.errors import EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterInfo

database_option = click.option(
    "--database-url",
    envvar="HOLDFAST_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help="Database of a cluster elsewhere, for example postgresql://holdfast_reader@db/holdfast.",
)

nats_option = click.option(
    "--nats-url",
    envvar="HOLDFAST_NATS_URL",
    show_envvar=True,
    metavar="URL",
    help="NATS of a cluster elsewhere, for example nats://nats:4222.",
)


def reader_url(directory: str | Path, database_url: str | None) -> str:
    """`database_url` if it is given, else that of the embedded cluster in `directory`, as the reading role.

    Raises:
        ClickException: there is neither.
    """
    return _set_to("database_url", database_url) or _embedded(directory, "--database-url").database_urls["reader"]


def nats_url(directory: str | Path, nats_url: str | None) -> str:
    """`nats_url` if it is given, else that of the embedded cluster in `directory`.

    Raises:
        ClickException: there is neither.
    """
    return _set_to("nats_url", nats_url) or _embedded(directory, "--nats-url").nats_url


def addresses_elsewhere() -> tuple[str, str] | None:
    """Database and bus of a cluster elsewhere, if environment or configuration file name both.

    Raises:
        ClickException: the configuration is refused.
    """
    database, bus = _set_to("database_url", None), _set_to("nats_url", None)
    return (database, bus) if database and bus else None


def _set_to(key: str, given: str | None) -> str:
    """An address that is set as a service would find it: flag, environment (or a file it names), configuration file."""
    try:
        settings, _ = config.load(os.environ, {key: given})
    except config.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
    return str(getattr(settings, key))


def _embedded(directory: str | Path, option: str) -> ClusterInfo:
    try:
        return ClusterInfo.load(directory)
    except NoCluster:
        raise click.ClickException(
            f"no cluster here ({Path(directory).absolute()}): start one with `holdfast up`, or name one with {option}"
        ) from None
    except EmbeddedError as error:
        raise click.ClickException(str(error)) from error
