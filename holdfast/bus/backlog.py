"""Estimates by a sample which nodes published the messages of a stream that services have yet to read; removes them."""

from __future__ import annotations

import asyncio
import random

import msgspec

from holdfast.bus import wire_bytes
from holdfast.bus.accounts import stored_for
from holdfast.bus.link import Link
from holdfast.bus.streams import message_at
from holdfast.bus.survey import StreamSurvey, survey_consumers
from holdfast.subjects import CONSUMERS, StreamSpec

FIRST_LOOKS = 8
LOOKS = 100
LOOKED_BYTES_MAX = 16 << 20
"""A look reads a whole message: fewer looks at a stream of long ones."""
LOOKS_MIN = 16


class Look(msgspec.Struct, frozen=True):
    """A message at a random position: the node that published it ("" for a service), and its size."""

    node: str
    nbytes: int


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that some service has not acknowledged; `positions` were looked at, some of them without a message."""

    unread: int
    positions: int
    looks: tuple[Look, ...]


class _Purged(msgspec.Struct, frozen=True):
    purged: int = 0


def _publisher(subject: str) -> str:
    node = subject.rpartition(".")[2]
    return node if any(_matches(pattern, subject) for pattern in stored_for(node)) else ""


def _matches(pattern: str, subject: str) -> bool:
    wanted, found = pattern.split("."), subject.split(".")
    return len(wanted) == len(found) and all(a in ("*", b) for a, b in zip(wanted, found, strict=True))


async def survey_backlog(
    link: Link, stream: StreamSurvey, since: int, messages_max: int, bytes_max: int
) -> Backlog | None:
    """Return the backlog of a stream after position `since`; None if it is certain, or likely, that no node has more
    than these limits there.

    Raises BusUnavailable without an answer, BusError if refused.
    """
    # Mostly all that is there is less than one node may have: then no other request is made.
    if stream.messages <= messages_max and stream.nbytes <= bytes_max:
        return None
    read = [it.acknowledged for it in await survey_consumers(link, stream.name) if it.name in CONSUMERS]
    first = max(min(read, default=0) + 1, since + 1, stream.first_sequence)
    unread = stream.last_sequence - first + 1
    if unread <= 0:
        return None
    positions, looks = FIRST_LOOKS, await _looks(link, stream.name, first, stream.last_sequence, FIRST_LOOKS)
    nbytes = sum(look.nbytes for look in looks)
    if unread <= messages_max and unread * nbytes <= bytes_max * positions:
        return None
    more = max(LOOKS_MIN, min(LOOKS, LOOKED_BYTES_MAX * positions // max(1, nbytes)))
    looks += await _looks(link, stream.name, first, stream.last_sequence, more)
    return Backlog(unread=unread, positions=positions + more, looks=tuple(looks))


async def _looks(link: Link, stream: str, first: int, last: int, count: int) -> list[Look]:
    sequences = [random.randint(first, last) for _ in range(count)]
    found = await asyncio.gather(*(_look(link, stream, sequence) for sequence in sequences))
    return [look for look in found if look is not None]


async def _look(link: Link, stream: str, sequence: int) -> Look | None:
    message = await message_at(link, stream, sequence)
    return None if message is None else Look(_publisher(message.subject), wire_bytes(message.body, message.headers))


async def remove_published(link: Link, spec: StreamSpec, node: str) -> int:
    """Remove from a stream all that a node may have published there; return the number of messages.

    Raises BusUnavailable without an answer, BusError if refused.
    """
    roots = tuple(subject.removesuffix(">") for subject in spec.subjects)
    removed = 0
    for subject in (it for it in stored_for(node) if it.startswith(roots)):
        removed += (await link.api(f"STREAM.PURGE.{spec.name}", {"filter": subject}, _Purged)).purged
    return removed
