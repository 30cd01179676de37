"""Rules for addresses: outside loopback, NATS and Postgres need TLS that verifies the server. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from urllib.parse import parse_qs, quote, unquote, urlsplit

from holdfast.settings.network import NetworkPolicy

PLAIN_TEXT = "plain_text"
"""The setting, and the parameter of an address of NATS that allows plain text for this address alone."""

Resolve = Callable[[str], Collection[str]]
"""Returns the IP addresses of a host; none if it has none."""

_TLS_SCHEMES = ("tls", "wss")
_ALLOW = "or allow plain text with plain_text = true in [network] (HOLDFAST_NETWORK_PLAIN_TEXT=true)"


class AddressRefused(ValueError):
    """An address may not be used; the message names it, the reason and the cures."""


def require_private_bus(url: str, network: NetworkPolicy, resolve: Resolve) -> None:
    """Raise AddressRefused if one of the servers (separated by commas) would be reached over a network without TLS."""
    for part in url.split(","):
        try:
            parts = urlsplit(part if "://" in part else f"nats://{part}")
            host = parts.hostname or ""
        except ValueError as error:
            raise AddressRefused(f"the address of NATS cannot be read: {error}") from error
        if parts.scheme in _TLS_SCHEMES or network.plain_text or allows_plain_text(parts.query):
            continue
        if reason := _why_not_loopback(host, resolve):
            raise AddressRefused(
                f"NATS at {_without_user(parts.netloc)} would be reached without TLS, and {reason}: passwords and "
                f"orders could be read on the way. Let its address begin with tls:// (tls_ca names its authority), "
                f"{_ALLOW}"
            )


def allows_plain_text(query: str) -> bool:
    """Return True if an address of NATS itself allows plain text: `?plain_text=true`."""
    return parse_qs(query).get(PLAIN_TEXT) == ["true"]


def private_database(url: str, network: NetworkPolicy, resolve: Resolve) -> str:
    """Return the address of Postgres to connect to: `url`, with the authority that vouches for the server.

    Raises AddressRefused if a server outside loopback would be reached without sslmode=verify-full.
    """
    try:
        parts = urlsplit(url)
        parameters = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    except ValueError as error:
        raise AddressRefused(f"the address of Postgres cannot be read: {error}") from error
    if parts.scheme not in ("postgresql", "postgres"):
        raise AddressRefused(
            f"{url.split('@')[-1]!r} is not an address of Postgres: use postgresql://USER@HOST/DATABASE"
        )
    if parts.netloc.count("@") > 1 or parts.fragment:
        # Clients take the first @ for the end of the password, and urlsplit the last one.
        raise AddressRefused(
            "the address of Postgres has an @ or # too many: write those of a user or password as %40 and %23"
        )
    mode = parameters.get("sslmode", "")
    if mode in ("verify-ca", "verify-full") and "sslrootcert" not in parameters:
        if not network.tls_ca:
            raise AddressRefused(
                f"Postgres at {_without_user(parts.netloc)} has sslmode={mode}, and no authority is named to verify it "
                "with: set tls_ca in [network] (HOLDFAST_NETWORK_TLS_CA), or sslrootcert in its address"
            )
        url = f"{url}&sslrootcert={quote(network.tls_ca)}"
    if mode == "verify-full" or network.plain_text:
        return url
    for host in _database_hosts(parts.netloc, parameters):
        if reason := _why_not_loopback(host, resolve):
            raise AddressRefused(
                f"Postgres at {host} would be reached with sslmode={mode or 'prefer'}, and {reason}: only verify-full "
                "encrypts and makes sure which server it is. Add sslmode=verify-full to its address (tls_ca names its "
                f"authority), {_ALLOW}"
            )
    return url


def asks_for_tls(url: str) -> bool:
    """Return True if an address of Postgres is for TLS only."""
    return parse_qs(urlsplit(url).query).get("sslmode", [""])[-1] in ("require", "verify-ca", "verify-full")


def is_loopback(address: str) -> bool:
    """Return True for an IP address of the loopback."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _why_not_loopback(host: str, resolve: Resolve) -> str:
    """Return why a host is not known to be this machine's loopback; "" if it is."""
    if host.startswith("/") or is_loopback(host):
        return ""
    addresses = resolve(host) if host else ()
    if not addresses:
        return f"{host or 'its host'} cannot be resolved, so it is not known to be on loopback"
    outside = sorted(address for address in addresses if not is_loopback(address))
    if not outside:
        return ""
    return f"{host} is not on loopback" + ("" if outside == [host] else f" ({', '.join(outside)})")


def _database_hosts(netloc: str, parameters: dict[str, str]) -> list[str]:
    """Return all hosts that a client may connect to. Raises AddressRefused if the address does not name them."""
    if "service" in parameters:
        raise AddressRefused("the address of Postgres names a service, which hides its host: write the host instead")
    if "hostaddr" in parameters:
        raise AddressRefused("the address of Postgres has a hostaddr, which is not followed: write the host instead")
    groups = (_without_user(netloc), parameters.get("host", ""))
    hosts = [_host(part) for group in groups if group for part in group.split(",")]
    if not hosts:
        raise AddressRefused(
            "the address of Postgres names no host, so PGHOST may lead anywhere: write the host, "
            "or ?host=/run/postgresql for a socket"
        )
    return hosts


def _host(part: str) -> str:
    if part.startswith("["):
        return part[1:].partition("]")[0]
    return unquote(part.partition(":")[0])


def _without_user(netloc: str) -> str:
    return netloc.rpartition("@")[2]
