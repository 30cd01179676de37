"""The check of a process's addresses and TLS files at its start."""

from __future__ import annotations

import socket
from collections.abc import Collection

from holdfast.network import impostors
from holdfast.network.tls import require_files
from holdfast.network.trust import private_database, require_private_bus
from holdfast.settings.addresses import Address, current
from holdfast.settings.load import Settings
from holdfast.settings.network import NetworkPolicy


def require_private(settings: Settings) -> None:
    """Raise AddressRefused or TlsFilesRefused (both ValueError) if NATS would be reached over a network without TLS, or
    a file of `[network]` cannot be used.
    """
    require_files(settings.network)
    trust_settings(settings.network)
    if settings.nats_url:
        require_private_bus(settings.nats_url, settings.network, addresses_of)


def trust_settings(network: NetworkPolicy) -> None:
    """Send passwords to servers of any user on loopback, if the settings allow plain text."""
    if network.plain_text:
        impostors.trust(impostors.EVERYONE)


def private_address(address: Address, network: NetworkPolicy) -> Address:
    """Return the address of Postgres to connect to. Raises AddressRefused if it may not be used, now or later."""

    trust_settings(network)

    def read() -> str:
        return private_database(current(address), network, addresses_of)

    read()
    return read


def addresses_of(host: str) -> Collection[str]:
    """Return the IP addresses of a host; none if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return {str(address[0]) for *_, address in found}
