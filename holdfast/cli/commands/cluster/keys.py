"""`holdfast keys`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli.values import FilePath
from holdfast.fresh_secrets import new_order_key
from holdfast.orders.signatures import SIGNERS, public_keys

PUBLIC_FILE = "orders.pub"


@click.command()
@click.argument("folder", type=FilePath(file_okay=False, path_type=Path))
def keys(folder: Path) -> None:
    """Make the keys of a cluster whose services and agents you start yourself, in a new FOLDER.

    \b
        holdfast keys /etc/holdfast/keys

    Nodes carry out only what the service that writes such orders has signed. Each of controller, analyzer and ckpt gets
    the file of its name, by HOLDFAST_NETWORK_ORDER_KEY_FILE, and no other; every agent gets orders.pub, by
    HOLDFAST_NETWORK_ORDER_KEYS_FILE. `holdfast up` and the compose settings make their own keys.
    """
    private = {service: new_order_key() for service in SIGNERS}
    try:
        folder.mkdir(mode=0o700, parents=True)
        for service, key in private.items():
            _write(folder / f"{service}.key", key, 0o600)
        _write(folder / PUBLIC_FILE, public_keys(private), 0o644)
    except FileExistsError as error:
        raise click.ClickException(
            f"{folder} exists already: keys are not replaced by accident. Name a new folder, and start all services "
            "and agents again with the new keys"
        ) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror}") from error
    names = ", ".join(f"{service}.key" for service in SIGNERS)
    click.echo(f"{folder}: {names} for these services, and {PUBLIC_FILE} for agents")


def _write(path: Path, text: str, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(f"{text}\n")
