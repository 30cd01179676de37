"""The base of all orders: what services publish in key buckets for nodes to carry out.

Control is level-triggered: an order holds until the next value of its key replaces it, however often or late it is
read. Each kind of order has one writer.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Self

import msgspec

from holdfast.decoding import read
from holdfast.subjects import DESIRED_BUCKET, JOBS_BUCKET


class UnreadableOrder(ValueError):
    """A body that is not an order of the expected kind; the message names the place of the error."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value of the bucket `desired`, addressed to one node, or of the bucket `jobs`, to all nodes of a job."""

    kind: ClassVar[str]
    """The first token of the key."""
    writer: ClassVar[str]
    """The only service that writes and signs orders of this kind, by its name on the bus."""
    addressee: ClassVar[str]
    """The field with the second token of the key: `node` or `job`."""

    @classmethod
    def key_of(cls, addressee: str) -> str:
        """Return the key of the orders of this kind for a node or job; `*` makes the filter for all of them."""
        return f"{cls.kind}.{addressee}"

    @classmethod
    def bucket(cls) -> str:
        """Return the bucket of the orders of this kind."""
        return DESIRED_BUCKET if cls.addressee == "node" else JOBS_BUCKET

    @property
    def key(self) -> str:
        """Key in the bucket."""
        return self.key_of(getattr(self, self.addressee))

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy of this order."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the order as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the order in `body`.

        Raises:
            UnreadableOrder: not JSON, or with a missing or wrong field.
        """
        order: Self = read(_decoder(cls), body, UnreadableOrder)
        return order


@cache
def _decoder(cls: type[Order]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls)
