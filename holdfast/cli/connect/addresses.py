"""Addresses of the database and the bus of a cluster, found by one rule for all commands.

The first source that names an address is used for all of them: the flags, --dir (or HOLDFAST_DIR), environment and
configuration file, the directory that is found from here. Mixing sources could send requests to one cluster about jobs
of another. Only flags may replace a single address of a directory that is named as well.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.bus.accounts import READER
from holdfast.cli.connect.command_tls import private_url
from holdfast.cli.connect.directory import as_typed, cluster_errors, is_named
from holdfast.cli.connect.reader import MayWrite, ReaderAccess, require_reader
from holdfast.embedded.control import is_running
from holdfast.embedded.errors import EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.servers import credentials
from holdfast.network.guard import addresses_of, trust_settings
from holdfast.network.trust import AddressRefused, private_database, require_private_bus
from holdfast.settings import load

database_option = click.option(
    "--database-url",
    metavar="URL",
    help="Database of a cluster elsewhere, for example postgresql://holdfast_reader@db/holdfast?sslmode=verify-full."
    "  [env var: HOLDFAST_DATABASE_URL]",
)

nats_option = click.option(
    "--nats-url",
    metavar="URL",
    help="NATS of a cluster elsewhere, for example tls://nats:4222.  [env var: HOLDFAST_NATS_URL]",
)


_ORIGINS = f"{__name__}.origins"
"""Key of click's context: which directory each address came from."""


def reader_url(directory: str | Path, database_url: str | None) -> str:
    """Return the URL of the database, in an embedded cluster for the reader's role. Raises ClickException if there is
    no cluster, or only its other address is named.
    """
    return _found(directory, {"database_url": database_url})["database_url"]


def nats_url(directory: str | Path, nats_url: str | None) -> str:
    """Return the URL of the bus. Raises as `reader_url` does."""
    return _found(directory, {"nats_url": nats_url})["nats_url"]


def both_urls(directory: str | Path, nats_url: str | None, database_url: str | None) -> tuple[str, str]:
    """Return the URLs of bus and database of one cluster. Raises as `reader_url` does."""
    found = _found(directory, {"nats_url": nats_url, "database_url": database_url})
    return found["nats_url"], found["database_url"]


def both_elsewhere(nats_url: str | None, database_url: str | None) -> tuple[str, str] | None:
    """Return bus and database of a cluster elsewhere, None for an embedded one. Raises as `reader_url` does."""
    found = _elsewhere({"nats_url": nats_url, "database_url": database_url})
    return None if found is None else (found["nats_url"], private_url(found["database_url"]))


def reader_access(directory: Path) -> ReaderAccess:
    """Return a cluster's addresses for its reader. Raises ClickException if there is no cluster, or if a setting names
    an address of another user: tools get none by which they could write.
    """
    found = _elsewhere({"nats_url": None, "database_url": None})
    if found is None:
        _embedded(directory, {"nats_url": None, "database_url": None})
        return _reader_of(ClusterLayout(directory))
    try:
        settings, _ = load.load(os.environ)
        if named := settings.network.reader_config:
            settings, _ = load.load({}, file=named)
            found = {"nats_url": settings.nats_url, "database_url": settings.database_url}
        trust_settings(settings.network)
        access = ReaderAccess(
            nats_url=found["nats_url"],
            database_url=private_database(found["database_url"], settings.network, addresses_of),
            network=settings.network,
        )
        require_reader(access.nats_url, access.database_url)
        require_private_bus(access.nats_url, settings.network, addresses_of)
    except MayWrite as error:
        raise click.ClickException(
            f"{error}: write the reader's nats_url and database_url into a configuration file, and name it with "
            f"{load.variable_of('network.reader_config')}"
        ) from error
    except (load.ConfigRefused, AddressRefused) as error:
        raise click.ClickException(str(error)) from error
    return access


def _reader_of(layout: ClusterLayout) -> ReaderAccess:
    with cluster_errors():
        info, known = layout.info(), credentials.load(layout)
    host = credentials.HOST if info.fabric is None else info.fabric.gateway
    # What allows plain text to our own processes means nothing to other clients.
    bus = credentials.nats_url(known, info.ports, host, READER).partition("?")[0]
    return ReaderAccess(nats_url=bus, database_url=credentials.database_urls(known, info.ports)[READER])


def as_of_now(url: str) -> str:
    """Return an address that was found here as it is now: the passwords of its cluster may have been renewed while the
    command runs. One that did not come from a cluster's directory stays.
    """
    context = click.get_current_context(silent=True)
    origin = context.meta.get(_ORIGINS, {}).get(url) if context is not None else None
    if origin is None:
        return url
    directory, key = origin
    try:
        return _addresses(ClusterInfo.load(directory))[key]
    except EmbeddedError:
        return url


def _addresses(info: ClusterInfo) -> dict[str, str]:
    return {"nats_url": info.nats_url, "database_url": info.database_urls["reader"]}


def _found(directory: str | Path, flags: dict[str, str | None]) -> dict[str, str]:
    found = _elsewhere(flags) or _embedded(directory, flags) | _given(flags)
    return found | ({"database_url": private_url(found["database_url"])} if "database_url" in flags else {})


def _elsewhere(flags: dict[str, str | None]) -> dict[str, str] | None:
    """Return the addresses (the keys of `flags`) if flags or, with no directory named, settings name them."""
    if is_named() and not all(flags.values()):
        return None
    if given := _given(flags):
        if missing := [_flag(key) for key in flags if key not in given]:
            raise click.ClickException(
                f"{' and '.join(map(_flag, given))} names a cluster elsewhere: give its other address too, with "
                f"{' and '.join(missing)}"
            )
        return given
    try:
        _, listed = load.load(os.environ)
    except load.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
    named = {row.key: row for row in listed if row.key in load.ADDRESSES and row.value}
    if named and (missing := [key for key in flags if key not in named]):
        by = ", ".join(f"{key} (by {row.origin})" for key, row in named.items())
        raise click.ClickException(
            f"the settings name the {by} of a cluster elsewhere, but not its {' and '.join(missing)}: set "
            f"{' and '.join(map(load.variable_of, missing))} too, or name a cluster on this machine with --dir"
        )
    return {key: named[key].value for key in flags} if named else None


def _given(flags: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in flags.items() if value}


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _embedded(directory: str | Path, needed: dict[str, str | None]) -> dict[str, str]:
    layout = ClusterLayout(directory)
    try:
        info = ClusterInfo.load(directory)
    except NoCluster:
        raise click.ClickException(
            f"no cluster here ({layout.root}): start one with `holdfast up`, or name one with --dir, or with "
            f"{' and '.join(map(_flag, needed))}"
        ) from None
    except EmbeddedError as error:
        raise click.ClickException(str(error)) from error
    if not is_running(layout):
        raise click.ClickException(
            f"the cluster in {layout.root} is not running: start it with `{as_typed('up', layout.root)}`"
        )
    found = _addresses(info)
    if (context := click.get_current_context(silent=True)) is not None:
        origins = context.meta.setdefault(_ORIGINS, {})
        origins |= {url: (directory, key) for key, url in found.items()}
    return found
