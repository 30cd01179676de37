"""The keys of orders in a daemon's settings: it does not start without its own.

Keys in files are read for each order, so one key replaces another without a start.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import structlog

from holdfast.daemon.process import Daemon
from holdfast.orders.base import Order
from holdfast.orders.signatures import OrderKeys, OrderSigner, SignedOrder, WrongKey, parsed_keys
from holdfast.settings.addresses import Address, current
from holdfast.settings.load import variable_of

PRIVATE_VARIABLE = variable_of("network.order_key")
PUBLIC_VARIABLE = variable_of("network.order_keys")

_CURE = "`holdfast credentials keys FOLDER` makes the keys of a cluster; docs/security.md has the key of each process"

T = TypeVar("T", bound=Order)
log = structlog.get_logger(__name__)


class LiveSigner(OrderSigner):
    """Signs with the key that its setting has at the moment."""

    def __init__(self, service: str, key: Address) -> None:
        """Raises WrongKey."""
        self._setting = key
        self._text = current(key)
        super().__init__(service, self._text)

    def sign(self, order: Order, now: datetime) -> bytes:
        self._follow()
        return super().sign(order, now)

    def own(self, kind: type[T], key: str, body: bytes | None) -> T | None:
        self._follow()
        return super().own(kind, key, body)

    def refreshed(self) -> str:
        self._follow()
        return super().refreshed()

    def _follow(self) -> None:
        """Use the key that the setting has now; one that is damaged changes nothing."""
        if (text := current(self._setting)) == self._text:
            return
        self._text = text
        try:
            self.use(text)
        except WrongKey as error:
            log.error("a renewed key is not used: orders are signed with the one before", reason=str(error))
        else:
            log.info("orders are signed with a renewed key", public=self.public)


class LiveKeys(OrderKeys):
    """Accepts the keys that their setting has at the moment."""

    def __init__(self, keys: Address) -> None:
        """Raises WrongKey."""
        self._setting = keys
        self._text = current(keys)
        super().__init__(parsed_keys(self._text))

    def read(self, kind: type[T], key: str, body: bytes) -> SignedOrder[T]:
        if (text := current(self._setting)) != self._text:
            self._text = text
            try:
                self.use(parsed_keys(text))
            except WrongKey as error:
                log.error("renewed keys are not used: those before count", reason=str(error))
            else:
                log.info("the keys by which orders are recognized have changed")
        return super().read(kind, key, body)


def signer_of(daemon: Daemon, service: str) -> LiveSigner:
    """Return what signs this service's orders; ends the process if it has no key."""
    if not current(daemon.order_key):
        raise SystemExit(
            f"{daemon.name}: no key to sign orders with, and nodes carry out no order without a signature: set "
            f"{PRIVATE_VARIABLE}_FILE to the file of the {service}'s key. {_CURE}."
        )
    try:
        return LiveSigner(service, daemon.order_key)
    except WrongKey as error:
        raise SystemExit(f"{daemon.name}: network.order_key is not a key: {error}. {_CURE}.") from error


def keys_of(daemon: Daemon) -> LiveKeys:
    """Return the public keys by which this agent recognizes orders; ends the process if it has none."""
    if not current(daemon.order_keys):
        raise SystemExit(
            f"{daemon.name}: no public keys of the services, so no order could be told from a forged one: set "
            f"{PUBLIC_VARIABLE}_FILE to the file orders.pub of the cluster. {_CURE}."
        )
    try:
        return LiveKeys(daemon.order_keys)
    except WrongKey as error:
        raise SystemExit(f"{daemon.name}: network.order_keys: {error}. {_CURE}.") from error
