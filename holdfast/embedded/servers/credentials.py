"""The passwords and keys of an embedded cluster: kept in `secrets.json`, never on a command line.

Whatever else holds a password (`embedded.servers.access`) is made from this file at every start. A change replaces the
file first, in one step, so that a supervisor which dies during the change leaves a cluster that starts with it.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from holdfast.bus import accounts
from holdfast.embedded.errors import ControlRefused, EmbeddedError
from holdfast.embedded.layout import SERVICES, ClusterLayout, Ports, write_private
from holdfast.events import CredentialsChanged
from holdfast.fresh_ids import uuid7
from holdfast.fresh_secrets import new_order_key, new_password
from holdfast.network.trust import PLAIN_TEXT
from holdfast.orders.signatures import SIGNERS, public_keys

DATABASE = "holdfast"
HOST = "127.0.0.1"
ADMIN = "admin"
"""Stands among the names of users for the administrator of the database."""
KEYS = "keys"
"""Stands among the names of users for the keys that sign orders."""
_UNRECORDED_MAX = 1000
"""Maximum number of changes kept while the bus is away; older ones are dropped."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """`roles` maps a database role (`holdfast_controller`, ..., `holdfast_reader`) to its password, `bus` a user of the
    bus (`holdfast.bus.accounts`).
    """

    postgres: str
    """The password of the database's administrator."""
    postgres_before: str = ""
    """The one before, while it is not known which of both the database has."""
    roles: dict[str, str]
    bus: dict[str, str] = {}
    order_keys: dict[str, str] = {}
    """The private keys by which services sign their orders."""
    retired_order_keys: tuple[str, ...] = ()
    """Public keys (`controller:KEY`) of replaced ones. They count until services have signed their orders again."""
    since: dict[str, datetime] = {}
    """When a user of the bus, and the role of the same process, got the present password; unknown for old ones. Also
    of `ADMIN` and `KEYS`."""
    revoked: dict[str, datetime] = {}
    """Nodes that are let in no more, and since when."""
    readmitted: dict[str, datetime] = {}
    """Nodes that are let in again, and since when they were not: certificates from before count no more."""
    unrecorded: tuple[CredentialsChanged, ...] = ()
    """Changes that are not known to be on the bus. Written with the change itself, so that none is lost."""

    def admitted(self, nodes: Iterable[str]) -> list[str]:
        """Return those of `nodes` that are not revoked."""
        return [node for node in nodes if node not in self.revoked]


def role_name(service: str) -> str:
    return f"holdfast_{service}"


def bus_user(name: str) -> str:
    """Return the user of the bus for a process: a node's has a prefix, all others are named as their process."""
    return name if name in _NAMES else accounts.node_user(name)


def roles_of(names: Iterable[str]) -> list[str]:
    """Return the database roles of these processes; nodes and the operator have none."""
    return [role_name(name) for name in names if name in _WITH_ROLE]


def processes(nodes: Iterable[str]) -> list[str]:
    """Return the names of all that have a password of their own, as users type them."""
    return [*_NAMES, *nodes]


def names(nodes: Iterable[str]) -> list[str]:
    """Return the names of all that can be renewed."""
    return [*processes(nodes), ADMIN, KEYS]


def load_or_create(layout: ClusterLayout, nodes: Iterable[str], *, renew: bool = False) -> Credentials:
    """Return the cluster's passwords and keys; a role, user or service that is new gets new ones, and with `renew` all
    are new.

    Raises EmbeddedError if the file is damaged, or gone while the database that it opens still exists.
    """
    nodes, now = list(nodes), datetime.now(UTC)
    try:
        known = _decoded(layout)
    except FileNotFoundError:
        if (layout.postgres / "data").exists():
            raise EmbeddedError(
                f"{layout.secrets_file} is gone, and with it the password of the database in {layout.postgres}. "
                "Put the file back, or start a new cluster in another directory with --dir."
            ) from None
        known = Credentials(postgres=new_password(), roles={}, since={ADMIN: now})
    complete = _completed(known, nodes, now)
    if renew:
        complete, users = renewed(complete, processes(nodes), now), processes(nodes)
        if not complete.postgres_before:
            complete, users = renewed_admin(complete, now), [*users, ADMIN]
        complete = noted(complete, "renewed", users, now, by=_BY_START)
        complete = noted(renewed_keys(complete, now), "renewed", SIGNERS, now, kind="order_key", by=_BY_START)
    if complete != known:
        save(layout, complete)
    return complete


def load(layout: ClusterLayout) -> Credentials:
    """Return the passwords of a cluster that was started. Raises EmbeddedError if the file cannot be read."""
    try:
        return _decoded(layout)
    except OSError as error:
        raise EmbeddedError(
            f"{layout.secrets_file} cannot be read: {error.strerror}. Run the command as the user who started the "
            "cluster."
        ) from error


def save(layout: ClusterLayout, credentials: Credentials) -> None:
    """Replace `secrets.json` in one step."""
    write_private(layout.secrets_file, msgspec.json.encode(credentials), durable=True)


def renewed(known: Credentials, names: Collection[str], now: datetime) -> Credentials:
    """Give these processes new passwords, on the bus and in the database."""
    users = [bus_user(name) for name in names]
    return msgspec.structs.replace(
        known,
        roles=known.roles | {role: new_password() for role in roles_of(names)},
        bus=known.bus | {user: new_password() for user in users},
        since=known.since | dict.fromkeys(users, now),
    )


def renewed_admin(known: Credentials, now: datetime) -> Credentials:
    """Give the database's administrator a new password; which one the database has, `Access.settle_admin` finds."""
    assert not known.postgres_before, "an earlier change is in force before the next one begins"
    return msgspec.structs.replace(
        known, postgres=new_password(), postgres_before=known.postgres, since=known.since | {ADMIN: now}
    )


def renewed_keys(known: Credentials, now: datetime) -> Credentials:
    """Give the services that write orders new keys; the old ones still count, as retired ones."""
    old = public_keys(known.order_keys).split()
    return msgspec.structs.replace(
        known,
        order_keys={service: new_order_key() for service in SIGNERS},
        retired_order_keys=(*known.retired_order_keys, *old),
        since=known.since | {KEYS: now},
    )


def accepted_keys(credentials: Credentials) -> str:
    """Return the public keys by which agents recognize orders."""
    return "\n".join([public_keys(credentials.order_keys), *credentials.retired_order_keys])


def revoked(known: Credentials, node: str, now: datetime) -> Credentials:
    """Let a node in no more. Its password is replaced, so that the present one is of no use after `restored` either.

    Raises ControlRefused if it is revoked already.
    """
    if node in known.revoked:
        raise ControlRefused(f"{node} is revoked already, since {known.revoked[node]:%Y-%m-%d %H:%M:%S} UTC")
    return msgspec.structs.replace(renewed(known, [node], now), revoked=known.revoked | {node: now})


def restored(known: Credentials, node: str) -> Credentials:
    """Let a revoked node in again. Raises ControlRefused if it is not revoked."""
    if node not in known.revoked:
        raise ControlRefused(f"{node} is not revoked")
    return msgspec.structs.replace(
        known,
        revoked={other: since for other, since in known.revoked.items() if other != node},
        readmitted=known.readmitted | {node: known.revoked[node]},
    )


def noted(
    changed: Credentials,
    change: Literal["renewed", "revoked", "restored"],
    names: Collection[str],
    now: datetime,
    *,
    kind: Literal["password", "order_key"] = "password",
    by: str,
) -> Credentials:
    """Return the credentials with an event about their change, to be published."""
    event = CredentialsChanged(
        id=uuid7(),
        at=now,
        source="supervisor",
        node=None if change == "renewed" else next(iter(names)),
        change=change,
        users=tuple(names),
        kind=kind,
        by=by,
    )
    return msgspec.structs.replace(changed, unrecorded=(*changed.unrecorded, event)[-_UNRECORDED_MAX:])


def nats_url(credentials: Credentials, ports: Ports, host: str = HOST, user: str = accounts.OPERATOR) -> str:
    """Return the address of the bus. One outside loopback is of this machine too, and allows plain text for itself."""
    plain = "" if host == HOST else f"?{PLAIN_TEXT}=true"
    return f"nats://{user}:{credentials.bus[user]}@{host}:{ports.nats}{plain}"


def database_urls(credentials: Credentials, ports: Ports) -> dict[str, str]:
    """Return one URL per user of the database, keyed as `ClusterInfo.database_urls`."""
    users = {"admin": ("postgres", credentials.postgres)}
    for service in _WITH_ROLE:
        users[service] = (role_name(service), credentials.roles[role_name(service)])
    return {
        key: f"postgresql://{user}:{password}@{HOST}:{ports.postgres}/{DATABASE}"
        for key, (user, password) in users.items()
    }


_BY_START = "holdfast up --new-passwords"
_NAMES = (*SERVICES, accounts.OPERATOR, accounts.READER)
_WITH_ROLE = (*SERVICES, accounts.READER)


def _decoded(layout: ClusterLayout) -> Credentials:
    try:
        return msgspec.json.decode(layout.secrets_file.read_bytes(), type=Credentials)
    except msgspec.MsgspecError as error:
        raise EmbeddedError(f"{layout.secrets_file} is damaged ({error}). Restore it from a copy.") from error


def _completed(known: Credentials, nodes: list[str], now: datetime) -> Credentials:
    roles = [role for role in map(role_name, _WITH_ROLE) if role not in known.roles]
    users = [user for user in map(bus_user, processes(nodes)) if user not in known.bus]
    made = dict.fromkeys(users if known.order_keys else [KEYS, *users], now)
    return msgspec.structs.replace(
        known,
        roles=known.roles | {role: new_password() for role in roles},
        bus=known.bus | {user: new_password() for user in users},
        order_keys={service: known.order_keys.get(service) or new_order_key() for service in SIGNERS},
        since=made | known.since,
    )
