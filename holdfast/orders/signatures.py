"""Signatures of orders. A node acts on what the service that writes this kind of order has signed, and on nothing else:
the right to write on the bus does not suffice.

A signature (Ed25519) covers bucket, key and the exact bytes of the order, with the time of signing. Both stand at the
end of the order's JSON, where a release without signatures ignores them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from holdfast.orders.base import Order, UnreadableOrder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES = 32
SIGNERS = ("controller", "analyzer", "ckpt")
"""The services that write orders; each has its own key."""

_CONTEXT = b"holdfast order 1"
"""No signature of this key for anything else is one of an order."""
_SIGNED_AT = b',"signed_ms":'
_SIGNATURE = b',"signature":"'
_SIGNATURE_CHARS = 86
_END = b'"}'
_TAIL_CHARS = len(_SIGNATURE) + _SIGNATURE_CHARS + len(_END)
_MS_CHARS_MAX = 15

T = TypeVar("T", bound=Order)


class NotSigned(UnreadableOrder):
    """An order without a valid signature of the service that writes this kind of order."""


class WrongKey(ValueError):
    """Text that is not a key, or lacks the key of a service."""


class SignedOrder(msgspec.Struct, Generic[T], frozen=True):
    """An order whose signature is valid."""

    order: T
    signed_at: datetime


class OrderSigner:
    """The private key of one service: it signs its orders, and recognizes them on the bus."""

    def __init__(self, service: str, private: str) -> None:
        """Raises WrongKey if `private` is not a key as `holdfast credentials keys` makes them."""
        self.service = service
        self.use(private)

    def use(self, private: str) -> None:
        """Sign with this key from now on. Raises WrongKey."""
        self._key = _private_key(private)
        self.public = public_key(private)
        self._own = OrderKeys({self.service: [self.public]})

    def refreshed(self) -> str:
        """Return the public key of the private one that signs from now on."""
        return self.public

    def sign(self, order: Order, now: datetime) -> bytes:
        """Return the order as it goes to the bus."""
        assert order.writer == self.service, f"{self.service} writes no order of kind {order.kind}"
        content = b"%b%b%d" % (order.encode()[:-1], _SIGNED_AT, round(now.timestamp() * 1000))
        signature = self._key.sign(_covered(order.bucket(), order.key, content))
        return content + _SIGNATURE + base64.urlsafe_b64encode(signature).rstrip(b"=") + _END

    def own(self, kind: type[T], key: str, body: bytes | None) -> T | None:
        """Return the order in the value of a key if this service signed it, else None."""
        try:
            return None if body is None else self._own.read(kind, key, body).order
        except UnreadableOrder:
            return None


class OrderKeys:
    """The public keys of the services that write orders: what a node needs to tell their orders from others."""

    def __init__(self, keys: Mapping[str, Iterable[str]]) -> None:
        """`keys` has the public keys of each service; several while one replaces another. Raises WrongKey."""
        self.use(keys)

    def use(self, keys: Mapping[str, Iterable[str]]) -> None:
        """Accept these keys only from now on. Raises WrongKey."""
        self._keys = {service: [_public_key(text) for text in texts] for service, texts in keys.items()}

    @classmethod
    def parse(cls, text: str) -> OrderKeys:
        """Return the keys in `text`. Raises WrongKey as `parsed_keys` does."""
        return cls(parsed_keys(text))

    def read(self, kind: type[T], key: str, body: bytes) -> SignedOrder[T]:
        """Return the order of this kind under `key`.

        Raises:
            NotSigned: the service that writes such orders did not sign it, or signed it for another key.
            UnreadableOrder: it is signed and cannot be read, or is addressed to another node than its key names.
        """
        from cryptography.exceptions import InvalidSignature

        content, signature, signed_at = _parts(body)
        covered = _covered(kind.bucket(), key, content)
        for public in self._keys.get(kind.writer, ()):
            try:
                public.verify(signature, covered)
            except InvalidSignature:
                continue
            break
        else:
            raise NotSigned(
                f"it is not signed by the {kind.writer} for {key}: somebody else wrote it, or keys differ between "
                "services and agents"
            )
        order = kind.decode(body)
        if order.key != key:
            raise UnreadableOrder(f"it belongs under the key {order.key}")
        return SignedOrder(order, signed_at)


def public_key(private: str) -> str:
    """Return the public key of a private one. Raises WrongKey."""
    return _text(_private_key(private).public_key().public_bytes_raw())


def parsed_keys(text: str) -> dict[str, list[str]]:
    """Return the keys of each service in `text`: words of the form `controller:KEY`.

    Raises WrongKey also if a service has none.
    """
    found: dict[str, list[str]] = {service: [] for service in SIGNERS}
    for number, word in enumerate(text.replace(",", " ").split(), start=1):
        service, colon, key = word.partition(":")
        if not colon or service not in found:
            # It is not shown: it may be a private key by mistake.
            raise WrongKey(f"word {number} is not of the form SERVICE:KEY, SERVICE one of {', '.join(SIGNERS)}")
        found[service].append(key)
    if missing := [service for service, keys in found.items() if not keys]:
        raise WrongKey(f"there is no key of {' and '.join(missing)}")
    return found


def public_keys(private: Mapping[str, str]) -> str:
    """Return the public keys of the services in the form that `OrderKeys.parse` reads. Raises WrongKey."""
    return "\n".join(f"{service}:{public_key(private[service])}" for service in SIGNERS)


def _parts(body: bytes) -> tuple[bytes, bytes, datetime]:
    """Return the signed bytes of an order, its signature, and the time of signing."""
    content, tail = body[:-_TAIL_CHARS], body[-_TAIL_CHARS:]
    before, _, signed_ms = content.rpartition(_SIGNED_AT)
    is_signed = tail.startswith(_SIGNATURE) and tail.endswith(_END) and before
    if not is_signed or not signed_ms.isdigit() or len(signed_ms) > _MS_CHARS_MAX:
        raise NotSigned("it carries no signature: somebody wrote it who has no key, or a service of an older release")
    try:
        signature = base64.b64decode(tail[len(_SIGNATURE) : -len(_END)] + b"==", altchars=b"-_", validate=True)
        return content, signature, datetime.fromtimestamp(int(signed_ms) / 1000, UTC)
    except (binascii.Error, ValueError, OverflowError) as error:
        raise NotSigned(f"its signature cannot be read: {error}") from error


def _covered(bucket: str, key: str, content: bytes) -> bytes:
    # Neither buckets nor keys hold line breaks.
    return b"\n".join((_CONTEXT, bucket.encode(), key.encode(), content))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _raw(text: str) -> bytes:
    try:
        raw = base64.b64decode(text.strip() + "=", altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise WrongKey(
            f"a key has 43 characters of A-Z, a-z, 0-9, - and _; this one has {len(text.strip())} characters"
        )
    return raw


def _private_key(text: str) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_raw(text))


def _public_key(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(_raw(text))
