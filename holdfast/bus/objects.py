"""Objects on a NATS link, as the object store of NATS lays them out (ADR-20): `nats object ls code` shows them.

An object is its chunks, messages under one subject, and a message about it under its name. Without accounts on the bus
every client may write there, and a full bucket loses its oldest messages: an object that is not whole counts as
missing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.bus import BusUnavailable, Message, NoResponder
from holdfast.bus.link import NO_MESSAGE, Link, status_of
from holdfast.bus.nats_py import Msg
from holdfast.decoding import UNREADABLE
from holdfast.fresh_ids import uuid7
from holdfast.subjects import object_stream

CHUNK_BYTES = 128 * 1024
AT_ONCE_MAX = 64
"""Objects that are requested at the same time."""
_REPLACES = {"Nats-Rollup": "sub"}


class _About(msgspec.Struct, frozen=True, kw_only=True):
    """The message about an object; of ADR-20's fields those that are read here."""

    nuid: str
    size: int
    chunks: int
    digest: str
    deleted: bool = False


def object_messages(bucket: str, name: str, content: bytes) -> Iterator[Message]:
    """Return the messages to store, in this order, for an object."""
    digest = hashlib.sha256(content)
    # The same content has the same chunks, so that storing it again needs no space.
    nuid = digest.hexdigest()[:32]
    chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
    for number, chunk in enumerate(chunks):
        headers = {} if number else _REPLACES
        yield Message(id=uuid7(), subject=f"$O.{bucket}.C.{nuid}", body=chunk, headers=headers)
    about: dict[str, Any] = {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(content),
        "mtime": datetime.now(UTC),
        "chunks": len(chunks),
        "digest": _in_words(digest.digest()),
        "options": {"max_chunk_size": CHUNK_BYTES},
    }
    body = msgspec.json.encode(about)
    yield Message(id=uuid7(), subject=_name_subject(bucket, name), body=body, headers=_REPLACES)


async def get_objects(link: Link, bucket: str, names: Collection[str]) -> dict[str, bytes]:
    """Return the complete objects; raises BusUnavailable without an answer."""
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def get(name: str) -> tuple[str, bytes | None]:
        async with turns:
            return name, await _content(link, bucket, name)

    found = await asyncio.gather(*map(get, names))
    return {name: content for name, content in found if content is not None}


async def _content(link: Link, bucket: str, name: str) -> bytes | None:
    about = await _about(link, bucket, name)
    if about is None:
        return None
    content, sequence = bytearray(), 0
    for _ in range(about.chunks):
        request = {"seq": sequence + 1, "next_by_subj": f"$O.{bucket}.C.{about.nuid}"}
        chunk = await _stored(link, bucket, "", msgspec.json.encode(request))
        if chunk is None or len(content) + len(chunk.data) > about.size:
            return None
        content += chunk.data
        sequence = int((chunk.headers or {})["Nats-Sequence"])
    is_whole = len(content) == about.size and _in_words(hashlib.sha256(content).digest()) == about.digest
    return bytes(content) if is_whole else None


async def _about(link: Link, bucket: str, name: str) -> _About | None:
    message = await _stored(link, bucket, f".{_name_subject(bucket, name)}", b"")
    if message is None:
        return None
    try:
        about = msgspec.json.decode(message.data, type=_About)
    except UNREADABLE:
        return None
    return None if about.deleted else about


async def _stored(link: Link, bucket: str, subject: str, request: bytes) -> Msg | None:
    try:
        message = await link.answer(f"$JS.API.DIRECT.GET.{object_stream(bucket)}{subject}", request)
    except NoResponder:
        raise BusUnavailable(f"bucket {bucket} is not there at {link.address}") from None
    return None if status_of(message) in NO_MESSAGE else message


def _name_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _in_words(digest: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(digest).decode()
