"""`holdfast credentials`: who may connect to the cluster on this machine. Its subcommands change it while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.directory import cluster_errors, directory_option
from holdfast.cli.output.tables import render
from holdfast.cli.values import FilePath
from holdfast.embedded import control
from holdfast.embedded.control import UserStatus
from holdfast.embedded.layout import ClusterLayout
from holdfast.fresh_secrets import new_order_key
from holdfast.orders.signatures import SIGNERS, public_keys

CHANGED_WITHIN_S = 120.0

ORDERS_FILE = "orders.pub"

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True)
@directory_option
@_json_option
@click.pass_context
def credentials(context: click.Context, directory: Path, as_json: bool) -> None:
    """List the users of the bus and the database: since when each has its password, and who is connected.

    Each service, each node, the operator (the command line) and a reader have a password of their own. No password is
    shown. The subcommands change them while training goes on:

    \b
        holdfast credentials                       # who may connect
        holdfast credentials renew node-1          # a new password; the old one is refused from then on
        holdfast credentials renew keys            # new keys to sign orders
        holdfast credentials renew --all
        holdfast credentials revoke node-1         # let a node in no more, for instance a machine that was broken into
        holdfast credentials restore node-1        # let it in again

    This is for clusters that `holdfast up` started; docs/compose.md has the steps for compose. Only `keys` is for one
    whose services and agents you start yourself: it makes the keys that sign orders.
    """
    if context.invoked_subcommand is not None:
        return
    with cluster_errors():
        reply = control.ask(ClusterLayout(directory), control.Users())
    _print_users(reply.users, as_json)


@credentials.command()
@click.argument("users", metavar="[USER]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All users, and the keys.")
@directory_option
@_json_option
def renew(users: tuple[str, ...], every: bool, directory: Path, as_json: bool) -> None:
    """Give USERs new passwords, on the bus and in the database, while they work.

    A USER is a service, a node, `operator` or `reader`, as `holdfast credentials` lists them. The old password is
    refused at once, and what was opened with it is closed. Services and agents find the new one in their files below
    DIR/addresses and connect again by themselves: nothing starts again, and training goes on. Hand a new password of
    the reader (secrets.json) to those who use it.

    `keys` in place of a USER replaces the keys that sign orders. Agents recognize both until the services have signed
    their orders again, for 15 s at most; then the old keys are worth nothing.

    `admin` is the administrator of the database: the supervisor, and the commands that migrate, back up and restore.

    Exit codes: 0 if all that run use what is new, 1 if one does not or a server does not take the change.
    """
    if every == bool(users):
        raise click.UsageError("give one USER or more, or --all")
    _progress(f"replacing {'all passwords and keys' if every else 'the secrets of ' + ', '.join(users)} ...")
    with cluster_errors(), _interrupted("renewing"):
        reply = control.ask(
            ClusterLayout(directory), control.Renew(users=list(users), by=asked_by()), within_s=CHANGED_WITHIN_S
        )
    _print_users(reply.users, as_json)
    if reply.late:
        raise click.ClickException(
            f"{', '.join(reply.late)}: not using the new password or key yet. See `holdfast logs {reply.late[0]}`"
        )


@credentials.command()
@click.argument("node")
@directory_option
def revoke(node: str, directory: Path) -> None:
    """Let NODE in no more: its connections are cut, its password is refused, and its processes are killed.

    It stays out, also after `holdfast down` and `up`, until `holdfast credentials restore NODE`. A job that it ran is
    recovered on other nodes, as after the loss of a node, or waits for one.
    """
    with cluster_errors(), _interrupted("revoking"):
        reply = control.ask(
            ClusterLayout(directory), control.Revoke(node=node, by=asked_by()), within_s=CHANGED_WITHIN_S
        )
    click.echo(
        f"{node} is revoked: {reply.killed} processes killed; `holdfast credentials restore {node}` lets it in again"
    )


@credentials.command()
@click.argument("node")
@directory_option
def restore(node: str, directory: Path) -> None:
    """Let NODE in again, with a new password, and start its agent."""
    with cluster_errors(), _interrupted("restoring"):
        control.ask(ClusterLayout(directory), control.Restore(node=node, by=asked_by()), within_s=CHANGED_WITHIN_S)
    click.echo(
        f"{node} is let in again; if it was evicted meanwhile, `holdfast nodes release {node}` takes it off the "
        "blocklist"
    )


@credentials.command()
@click.argument("folder", type=FilePath(file_okay=False, path_type=Path))
def keys(folder: Path) -> None:
    """Make the keys of a cluster whose services and agents you start yourself, in a new FOLDER.

    \b
        holdfast credentials keys /etc/holdfast/keys

    Nodes carry out only what the service that writes such orders has signed. Each of controller, analyzer and ckpt gets
    the file of its name, by HOLDFAST_NETWORK_ORDER_KEY_FILE, and no other; every agent gets orders.pub, by
    HOLDFAST_NETWORK_ORDER_KEYS_FILE. `holdfast up` and the compose settings make their own keys.
    """
    private = {service: new_order_key() for service in SIGNERS}
    try:
        folder.mkdir(mode=0o700, parents=True)
        for service, key in private.items():
            _write(folder / f"{service}.key", key, 0o600)
        _write(folder / ORDERS_FILE, public_keys(private), 0o644)
    except FileExistsError as error:
        raise click.ClickException(
            f"{folder} exists already: keys are not replaced by accident. Name a new folder; docs/security.md has the "
            "steps by which new keys take the place of old ones while jobs train"
        ) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror}") from error
    names = ", ".join(f"{service}.key" for service in SIGNERS)
    click.echo(f"{folder}: {names} for these services, and {ORDERS_FILE} for agents")


def _print_users(users: list[UserStatus], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(users), indent=2))
        return
    click.echo(
        render(
            ["USER", "KIND", "SINCE", "CONNECTIONS", "STATE"],
            [
                (
                    user.name,
                    user.kind,
                    user.since,
                    user.connections,
                    f"revoked {user.revoked:%Y-%m-%d %H:%M:%S}" if user.revoked else "admitted",
                )
                for user in users
            ],
        )
    )


@contextmanager
def _interrupted(doing: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _progress(f"no longer waiting: the supervisor goes on {doing}; `holdfast credentials` shows the result")
        raise


def _progress(line: str) -> None:
    click.echo(line, err=True)
    sys.stderr.flush()


def _write(path: Path, text: str, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(f"{text}\n")
