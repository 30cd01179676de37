"""Identifiers: time-ordered event ids and the names that may stand in a subject."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import uuid
from datetime import datetime

NAME_MAX_CHARS = 63
_NAME = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9-]{{0,{NAME_MAX_CHARS - 2}}}[A-Za-z0-9])?")


def uuid7(unix_ms: int | None = None, random_bytes: bytes | None = None) -> str:
    """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then randomness, so that ids sort by time.

    Both inputs can be given, so that a caller with its own clock and randomness stays reproducible.
    """
    ms = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    rand = int.from_bytes(os.urandom(10) if random_bytes is None else random_bytes[:10], "big")
    value = (ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (rand >> 68) << 64 | 0b10 << 62 | (rand & ((1 << 62) - 1))
    # As text at once: a service makes some for every event, and objects of uuid.UUID take three times as long.
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


NTH_MAX = 0xFFF


def derived_id(parent: str, *parts: str | int, nth: int | None = None) -> str:
    """The id of something that follows from `parent`, the same each time it is derived.

    Decisions derive the ids of what they say from the event they answer, so that a repeated event
    repeats the very same messages, which every receiver then knows already. The time part is the
    parent's, so derived ids still sort by time; those of one decision sort by `nth` (RFC 9562, section 6.2: a
    counter in the bits that follow the time).

    Raises:
        ValueError: `parent` is no UUID.
    """
    namespace = bytes.fromhex(parent.replace("-", ""))
    if len(namespace) != 16:
        raise ValueError(f"{parent!r} is no UUID")
    digest = _digest(namespace, parts)
    if nth is not None:
        digest = (min(nth, NTH_MAX) << 4 | digest[1] & 0xF).to_bytes(2, "big") + digest[2:]
    return uuid7(unix_ms=int.from_bytes(namespace[:6], "big"), random_bytes=digest)


def named_id(at: datetime, *parts: str | int) -> str:
    """The id of something that is fully named by `parts` and a time, the same each time it is derived."""
    return uuid7(unix_ms=int(at.timestamp() * 1000), random_bytes=_digest(uuid.NAMESPACE_OID.bytes, parts))


def _digest(namespace: bytes, parts: tuple[str | int, ...]) -> bytes:
    """The bytes of UUIDv5 (RFC 9562, section 5.5)."""
    named = "/".join(map(str, parts)).encode()
    digest = bytearray(hashlib.sha1(namespace + named, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def checked_name(name: str, what: str) -> str:
    """`name`, if it can be one token of a subject.

    Raises:
        ValueError: it cannot; the message says what is allowed.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r} is not a valid name: use 1 to {NAME_MAX_CHARS} letters, digits and inner hyphens"
        )
    return name


def new_job_name(stem: str) -> str:
    """A fresh job name that begins with a cleaned-up `stem`."""
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower()[:40].strip("-") or "job"
    return f"{cleaned}-{secrets.token_hex(3)}"
