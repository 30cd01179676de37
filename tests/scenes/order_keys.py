"""Keys of orders for tests: those of one cluster, made up and the same in every test."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime

from holdfast.clock import system_now
from holdfast.daemon.orders.order_keys import PRIVATE_VARIABLE, PUBLIC_VARIABLE
from holdfast.orders.base import Order
from holdfast.orders.signatures import SIGNERS, OrderKeys, OrderSigner, public_keys


def private_keys(cluster: str = "tests") -> dict[str, str]:
    """The private key of each service; those of another cluster differ."""
    return {
        service: base64.urlsafe_b64encode(hashlib.sha256(f"{cluster} {service}".encode()).digest()).decode().rstrip("=")
        for service in SIGNERS
    }


PRIVATE = private_keys()
SIGNER = {service: OrderSigner(service, key) for service, key in PRIVATE.items()}
KEYS = OrderKeys.parse(public_keys(PRIVATE))
OF_AGENTS = {PUBLIC_VARIABLE: public_keys(PRIVATE)}
"""Variables of an agent."""


def of_service(service: str) -> dict[str, str]:
    """Variables of a service."""
    return {PRIVATE_VARIABLE: PRIVATE[service]}


def signed(order: Order, at: datetime | None = None) -> bytes:
    """The order as the service that writes it puts it on the bus."""
    return SIGNER[order.writer].sign(order, at or system_now())
