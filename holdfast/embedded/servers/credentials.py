"""The passwords of an embedded cluster: created once, kept in `secrets.json`, never on a command line."""

import secrets
from collections.abc import Iterable

import msgspec

from holdfast.bus import accounts
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import SERVICES, ClusterLayout, Ports, write_private
from holdfast.network.trust import PLAIN_TEXT

DATABASE = "holdfast"
HOST = "127.0.0.1"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """`roles` maps a database role (`holdfast_controller`, ..., `holdfast_reader`) to its password, `bus` a user of the
    bus (`holdfast.bus.accounts`).
    """

    postgres: str
    roles: dict[str, str]
    bus: dict[str, str] = {}


def role_name(service: str) -> str:
    return f"holdfast_{service}"


def load_or_create(layout: ClusterLayout, nodes: Iterable[str], *, renew: bool = False) -> Credentials:
    """Return the cluster's passwords; a role or user that is new gets a new one, and with `renew` all but the database
    administrator's are new. Raises EmbeddedError if the file is damaged, or gone while the database that it opens still
    exists.
    """
    try:
        known = msgspec.json.decode(layout.secrets_file.read_bytes(), type=Credentials)
    except FileNotFoundError:
        if (layout.postgres / "data").exists():
            raise EmbeddedError(
                f"{layout.secrets_file} is gone, and with it the password of the database in {layout.postgres}. "
                "Put the file back, or start a new cluster in another directory with --dir."
            ) from None
        known = Credentials(postgres=_password(), roles={})
    except msgspec.MsgspecError as error:
        raise EmbeddedError(f"{layout.secrets_file} is damaged ({error}). Restore it from a copy.") from error
    if renew:
        known = msgspec.structs.replace(known, roles={}, bus={})
    roles = _completed(known.roles, [role_name(service) for service in (*SERVICES, "reader")])
    complete = msgspec.structs.replace(known, roles=roles, bus=_completed(known.bus, accounts.users(nodes)))
    if complete != known:
        write_private(layout.secrets_file, msgspec.json.encode(complete), durable=True)
    return complete


def nats_url(credentials: Credentials, ports: Ports, host: str = HOST, user: str = accounts.OPERATOR) -> str:
    """Return the address of the bus. One outside loopback is of this machine too, and allows plain text for itself."""
    plain = "" if host == HOST else f"?{PLAIN_TEXT}=true"
    return f"nats://{user}:{credentials.bus[user]}@{host}:{ports.nats}{plain}"


def database_urls(credentials: Credentials, ports: Ports) -> dict[str, str]:
    """Return one URL per user of the database, keyed as `ClusterInfo.database_urls`."""
    users = {"admin": ("postgres", credentials.postgres)}
    for service in (*SERVICES, "reader"):
        users[service] = (role_name(service), credentials.roles[role_name(service)])
    return {
        key: f"postgresql://{user}:{password}@{HOST}:{ports.postgres}/{DATABASE}"
        for key, (user, password) in users.items()
    }


def _completed(known: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    return known | {name: _password() for name in names if name not in known}


def _password() -> str:
    return secrets.token_urlsafe(24)  # URL-safe without quoting: it goes into connection strings.
