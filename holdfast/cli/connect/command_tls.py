"""TLS of commands, by the settings of section `[network]`."""

from __future__ import annotations

import click

from holdfast.cli.connect.settings import own_settings
from holdfast.network.guard import addresses_of, trust_settings
from holdfast.network.trust import AddressRefused, private_database
from holdfast.settings.network import NetworkPolicy


def network_policy() -> NetworkPolicy:
    """Return section `[network]` of this command's settings. Raises ClickException if they are refused."""
    network = own_settings().network
    trust_settings(network)
    return network


def private_url(database_url: str) -> str:
    """Return the address of Postgres to connect to. Raises ClickException if it would be reached in plain text."""
    try:
        return private_database(database_url, network_policy(), addresses_of)
    except AddressRefused as error:
        raise click.ClickException(str(error)) from error
