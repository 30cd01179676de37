"""Access of a tool that reads a cluster: addresses with the reader's passwords, and files for TLS. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

import msgspec

from holdfast.bus.accounts import READER
from holdfast.settings.network import NetworkPolicy
from holdfast.subjects import ROOT

ROLE = f"holdfast_{READER}"
"""The reader's role in the database. On the bus its user is READER."""
RECEIVED = f"{ROOT}.>"
INBOX = f"_INBOX.{READER}"
"""The only prefix under which the reader may receive replies."""
_PARAMETERS = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY"}


class MayWrite(ValueError):
    """An address names another user than the reader; the message names the user."""


class ReaderAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of one cluster, for its reader."""

    nats_url: str
    """Several servers are separated by commas."""
    database_url: str
    network: NetworkPolicy = NetworkPolicy()
    """Names the files that a NATS with TLS needs."""

    def environment(self) -> dict[str, str]:
        """Return the variables that `nats`, `psql` and other clients of libpq read by themselves."""
        database = urlsplit(self.database_url)
        parameters = parse_qs(database.query)
        hosts, ports = _places(database.netloc.rpartition("@")[2])
        variables = {
            "NATS_URL": self.nats_url,
            **self._tls("NATS_"),
            "NATS_INBOX_PREFIX": INBOX,
            "PGHOST": parameters.get("host", [hosts])[-1],
            "PGPORT": parameters.get("port", [ports])[-1],
            "PGUSER": ROLE,
            "PGPASSWORD": unquote(database.password or ""),
            "PGDATABASE": unquote(database.path.removeprefix("/")),
            **{name: parameters[key][-1] for key, name in _PARAMETERS.items() if key in parameters},
        }
        return {name: value for name, value in variables.items() if value}

    def exports(self) -> str:
        """Return the variables as lines for a shell."""
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items())

    def as_data(self, description: str) -> dict[str, Any]:
        """Return the addresses by their parts; `description`: where the AsyncAPI file lies."""
        database = {name.lower(): value for name, value in self.environment().items() if name.startswith("PG")}
        servers = self.nats_url.split(",")
        login = urlsplit(servers[0])
        return {
            "nats": {
                "url": self.nats_url,
                "servers": [_without_login(server) for server in servers],
                "user": READER,
                "password": unquote(login.password or ""),
                "subjects": [RECEIVED],
                "inbox_prefix": INBOX,
                "tls": {name.lower(): value for name, value in self._tls("").items()} or None,
            },
            "postgres": {"dsn": self.database_url, **{name[2:]: value for name, value in database.items()}},
            "asyncapi": description,
        }

    def _tls(self, prefix: str) -> dict[str, str]:
        named = {"CA": self.network.tls_ca, "CERT": self.network.tls_cert, "KEY": self.network.tls_key}
        is_encrypted = urlsplit(self.nats_url).scheme in ("tls", "wss")
        return {prefix + name: path for name, path in named.items() if path and is_encrypted}


def require_reader(nats_url: str, database_url: str) -> None:
    """Raise MayWrite if an address is not the reader's: it must not be handed to a tool."""
    for server in nats_url.split(","):
        if (user := _user(server)) != READER:
            raise MayWrite(f"the address of NATS is that of {user or 'no user'}, not of {READER}")
    if (user := _user(database_url)) != ROLE:
        raise MayWrite(f"the address of Postgres is that of {user or 'no user'}, not of {ROLE}")


def settings_file(access: ReaderAccess) -> str:
    """Return a configuration file by which commands of Holdfast read this cluster: `HOLDFAST_CONFIG` names it."""
    values = {"nats_url": access.nats_url, "database_url": access.database_url}
    files = {name: getattr(access.network, name) for name in ("tls_ca", "tls_cert", "tls_key")}
    return "\n".join([*_toml(values), "", "[network]", *_toml(files), ""])


def _toml(values: Mapping[str, str]) -> list[str]:
    # A JSON string is one of TOML's basic strings.
    return [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in values.items() if value]


def _places(netloc: str) -> tuple[str, str]:
    """Return the hosts and the ports of an address, each separated by commas, as libpq reads them."""
    parts = [urlsplit(f"//{part}") for part in netloc.split(",")]
    return ",".join(unquote(part.hostname or "") for part in parts), ",".join(str(part.port or 5432) for part in parts)


def _user(url: str) -> str:
    parts = urlsplit(url)
    return parse_qs(parts.query).get("user", [unquote(parts.username or "")])[-1]


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
