"""Replacement of the keys of orders: services sign their orders again; orders under an old key are deleted.

The supervisor has all private keys and yet signs no order: an order on the bus under an old key may be forged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import get_args

from holdfast.bus import BusUnavailable, KeyUpdate, NoResponder
from holdfast.bus.link import ApiRefusal, Link, raise_refusal
from holdfast.bus.watch import all_values, key_update
from holdfast.orders.any_order import AnyOrder
from holdfast.orders.base import Order, UnreadableOrder
from holdfast.orders.signatures import NotSigned, OrderKeys
from holdfast.requests import SIGN_AGAIN
from holdfast.subjects import kv_subject, ping_subject

SIGNED_WITHIN_S = 15.0
"""Longest wait for a service to sign its orders again. The old key ends then all the same: it may be stolen."""
_ANSWER_WITHIN_S = 12.0
_ASK_AGAIN_S = 0.1
_DAEMONS = {"ckpt": "ckpt-coordinator"}
"""Services whose daemon answers pings under another name."""
_WRONG_REVISION = 10071


async def change_over(url: str, services: Collection[str], present: Mapping[str, str], retired: OrderKeys) -> list[str]:
    """Have services sign their orders with their `present` keys, and remove orders that only `retired` ones vouch for.

    Returns the services that have not confirmed it. Raises BusError if the bus is not there.
    """
    link = await Link.open(url, "supervisor")
    try:
        confirmed = await asyncio.gather(*(_has_signed(link, service, present[service]) for service in services))
        await _remove_old(link, OrderKeys({service: [key] for service, key in present.items()}), retired)
    finally:
        await link.close()
    return [service for service, is_done in zip(services, confirmed, strict=True) if not is_done]


async def _has_signed(link: Link, service: str, public: str) -> bool:
    subject = ping_subject(_DAEMONS.get(service, service))
    try:
        async with asyncio.timeout(SIGNED_WITHIN_S):
            while True:
                try:
                    answer = await link.answer(subject, SIGN_AGAIN, timeout_s=_ANSWER_WITHIN_S)
                    if answer.data == public.encode():
                        return True
                except (NoResponder, BusUnavailable):
                    if link.lost:
                        raise
                await asyncio.sleep(_ASK_AGAIN_S)
    except TimeoutError:
        return False


async def _remove_old(link: Link, present: OrderKeys, retired: OrderKeys) -> None:
    kinds: tuple[type[Order], ...] = get_args(AnyOrder)
    for kind in kinds:
        key = kind.key_of("*")
        for message in await all_values(link, kind.bucket(), key):
            update = key_update(kind.bucket(), key, message)
            if update is None or _vouches(present, kind, update) or not _vouches(retired, kind, update):
                continue
            headers = {"KV-Operation": "DEL", "Nats-Expected-Last-Subject-Sequence": str(update.revision)}
            subject = kv_subject(kind.bucket(), update.key)
            try:
                raise_refusal(f"removal of {update.key}", (await link.answer(subject, b"", headers)).data)
            except ApiRefusal as refusal:
                if refusal.error.err_code != _WRONG_REVISION:
                    raise
                # A newer order has taken its place.


def _vouches(keys: OrderKeys, kind: type[Order], update: KeyUpdate) -> bool:
    if update.body is None:
        return False
    try:
        keys.read(kind, update.key, update.body)
    except NotSigned:
        return False
    except UnreadableOrder:
        pass  # it is signed
    return True
