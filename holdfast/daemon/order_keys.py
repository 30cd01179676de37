"""The keys of orders in a daemon's settings: it does not start without its own."""

from __future__ import annotations

from holdfast.daemon.process import Daemon
from holdfast.orders.signatures import OrderKeys, OrderSigner, WrongKey
from holdfast.settings.load import variable_of

PRIVATE_VARIABLE = variable_of("network.order_key")
PUBLIC_VARIABLE = variable_of("network.order_keys")

_CURE = "`holdfast credentials keys FOLDER` makes the keys of a cluster; docs/security.md says which process gets which"


def signer_of(daemon: Daemon, service: str) -> OrderSigner:
    """Return what signs this service's orders; ends the process if it has no key."""
    key = daemon.settings.network.order_key
    if not key:
        raise SystemExit(
            f"{daemon.name}: no key to sign orders with, and nodes carry out no order without a signature: set "
            f"{PRIVATE_VARIABLE}_FILE to the file of the {service}'s key. {_CURE}."
        )
    try:
        return OrderSigner(service, key)
    except WrongKey as error:
        raise SystemExit(f"{daemon.name}: network.order_key is not a key: {error}. {_CURE}.") from error


def keys_of(daemon: Daemon) -> OrderKeys:
    """Return the public keys by which this agent recognizes orders; ends the process if it has none."""
    keys = daemon.settings.network.order_keys
    if not keys:
        raise SystemExit(
            f"{daemon.name}: no public keys of the services, so no order could be told from a forged one: set "
            f"{PUBLIC_VARIABLE}_FILE to the file orders.pub of the cluster. {_CURE}."
        )
    try:
        return OrderKeys.parse(keys)
    except WrongKey as error:
        raise SystemExit(f"{daemon.name}: network.order_keys: {error}. {_CURE}.") from error
