"""A node reads what the right service has signed for the right key, and nothing else."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.orders.any_order import AnyOrder
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import (
    SIGNERS,
    NotSigned,
    OrderKeys,
    OrderSigner,
    WrongKey,
    public_key,
    public_keys,
)
from tests.scenes.order_keys import KEYS, PRIVATE, SIGNER, private_keys, signed
from tests.unit.holdfast.orders.test_orders import EXPECTED

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
ORDERS = [order for order, *_ in EXPECTED]
ORDER = NodeOrder(node="a", epoch=2, generation=3)
kinds = pytest.mark.parametrize("order", ORDERS, ids=lambda it: type(it).__name__)


@kinds
def test_what_its_writer_signed_is_read_with_its_time_also_by_a_release_without_signatures(order: AnyOrder) -> None:
    body = signed(order, AT)
    found = KEYS.read(type(order), order.key, body)
    assert (found.order, found.signed_at) == (order, AT)
    assert type(order).decode(body) == order
    assert SIGNER[order.writer].own(type(order), order.key, body) == order
    assert body == signed(order, AT), "the same order at the same time is the same message"


@kinds
def test_what_another_service_or_another_cluster_signed_is_refused(order: AnyOrder) -> None:
    unsigned = order.encode()
    strangers = [OrderSigner(order.writer, private) for private in private_keys("another cluster").values()]
    strangers += [OrderSigner(order.writer, PRIVATE[service]) for service in SIGNERS if service != order.writer]
    for body in (unsigned, b"", b"{}", b'{"signature":""}', *(stranger.sign(order, AT) for stranger in strangers)):
        with pytest.raises(NotSigned, match=r"no signature|not signed by the (controller|analyzer|ckpt)"):
            KEYS.read(type(order), order.key, body)
        assert SIGNER[order.writer].own(type(order), order.key, body) is None


def test_no_byte_of_a_signed_order_can_be_changed() -> None:
    body = signed(ORDER, AT)
    for position in range(len(body)):
        changed = body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]
        try:
            found = KEYS.read(NodeOrder, ORDER.key, changed)
        except UnreadableOrder:
            continue
        # The last character of a signature in Base64 has bits that mean nothing.
        assert (position, found.order) == (len(body) - 3, ORDER)
    for longer in (body + b" ", b" " + body, body[:-1] + b',"epoch":9}'):
        with pytest.raises(NotSigned):
            KEYS.read(NodeOrder, ORDER.key, longer)


@pytest.mark.parametrize("key", ["node.b", "backup.a", "node.a.a", "node.*"])
def test_an_order_counts_under_its_own_key_only(key: str) -> None:
    with pytest.raises(NotSigned):
        KEYS.read(NodeOrder, key, signed(ORDER))


def test_an_order_counts_in_its_own_bucket_only() -> None:
    class Elsewhere(NodeOrder, frozen=True, kw_only=True):
        @classmethod
        def bucket(cls) -> str:
            return "another"

    with pytest.raises(NotSigned):
        KEYS.read(NodeOrder, ORDER.key, signed(Elsewhere(node="a", epoch=2, generation=3)))


def test_a_signed_order_for_another_node_or_of_another_form_is_refused_too() -> None:
    class Misplaced(NodeOrder, frozen=True, kw_only=True):
        key = "node.a"  # type: ignore[assignment]

    class Later(NodeOrder, frozen=True, kw_only=True):
        def encode(self) -> bytes:
            return msgspec.json.encode({"node": "a", "epoch": "many", "generation": 3})

    with pytest.raises(UnreadableOrder, match=r"it belongs under the key node\.b"):
        KEYS.read(NodeOrder, "node.a", signed(Misplaced(node="b", epoch=2, generation=3)))
    with pytest.raises(UnreadableOrder, match="epoch"):
        KEYS.read(NodeOrder, "node.a", signed(Later(node="a", epoch=2, generation=3)))


def test_a_service_signs_only_the_kinds_that_it_writes() -> None:
    for order in ORDERS:
        for service in set(SIGNERS) - {order.writer}:
            with pytest.raises(AssertionError, match=f"{service} writes no order of kind {order.kind}"):
                SIGNER[service].sign(order, AT)


def test_two_keys_of_a_service_count_while_one_replaces_the_other() -> None:
    new = secrets.token_urlsafe(32)
    keys = OrderKeys.parse(f"{public_keys(PRIVATE)}\ncontroller:{public_key(new)}\n")
    for signer in (SIGNER["controller"], OrderSigner("controller", new)):
        assert keys.read(NodeOrder, ORDER.key, signer.sign(ORDER, AT)).order == ORDER


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "there is no key of controller and analyzer and ckpt"),
        (f"controller:{public_key(PRIVATE['controller'])}", "there is no key of analyzer and ckpt"),
        (f"historian:{public_key(PRIVATE['controller'])}", "not of the form SERVICE:KEY"),
        (f"{public_keys(PRIVATE)} controller:short", "a key has 43 characters .* this one has 5"),
        (f"{public_keys(PRIVATE)} controller:{'?' * 43}", "a key has 43 characters"),
    ],
)
def test_keys_that_are_none_are_refused_with_the_cause(text: str, cause: str) -> None:
    with pytest.raises(WrongKey, match=cause):
        OrderKeys.parse(text)


def test_a_private_key_among_public_ones_is_not_shown() -> None:
    with pytest.raises(WrongKey, match="word 1 is not of the form") as refused:
        OrderKeys.parse(PRIVATE["controller"])
    assert PRIVATE["controller"][:8] not in str(refused.value)


def test_a_private_key_is_32_random_bytes() -> None:
    raw = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    assert OrderSigner("controller", f"{raw}\n").sign(ORDER, AT)
    with pytest.raises(WrongKey) as refused:
        OrderSigner("controller", f"{raw}x")
    assert raw not in str(refused.value), "no part of it is shown"
