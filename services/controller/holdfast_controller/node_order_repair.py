"""Repair of the orders to nodes on the bus (`holdfast.daemon.orders.order_repair`).

Agents refuse orders that the controller did not sign or that are older than the newest; this restores its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast.clock import Now
from holdfast.daemon.orders.order_repair import Correction
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderSigner


def truths(orders: Iterable[NodeOrder], signer: OrderSigner, now: Now) -> dict[str, Correction]:
    return {order.key: partial(_corrected, order, signer, now) for order in orders}


def hints(orders: Iterable[CodeOrder], signer: OrderSigner, now: Now) -> dict[str, Correction]:
    """Return the corrections of what this controller did not sign; a hint that it signed may be newer than `orders`."""
    return {order.key: partial(_signed, order, signer, now) for order in orders}


def correction(found: NodeOrder | None, truth: NodeOrder) -> NodeOrder | None:
    """Return the order to put in place of the one on the bus; None if that is correct.

    `found` is None if the controller did not sign what is there. `truth` is never older than what this controller
    published: one with a higher fence is from before the database went back to a backup.
    """
    if found is None or found.fence < truth.fence:
        return truth
    if found.fence > truth.fence:
        return msgspec.structs.replace(truth, supersedes=found.fence)
    return truth if found.placement != truth.placement else None


def _signed(hint: CodeOrder, signer: OrderSigner, now: Now, body: bytes | None) -> bytes | None:
    return signer.sign(hint, now()) if signer.own(CodeOrder, hint.key, body) is None else None


def _corrected(truth: NodeOrder, signer: OrderSigner, now: Now, body: bytes | None) -> bytes | None:
    right = correction(signer.own(NodeOrder, truth.key, body), truth)
    return None if right is None else signer.sign(right, now())
