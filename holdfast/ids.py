"""Ids that are derived from other ids or from names, and the names that may be tokens of a subject. Pure."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

NAME_MAX_CHARS = 63
_NAME = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9-]{{0,{NAME_MAX_CHARS - 2}}}[A-Za-z0-9])?")


NTH_MAX = 0xFFF
_UNIX_MS_MAX = 253_402_300_799_000
"""The last second of the year 9999, where datetime ends."""
_NAMESPACE_OID = bytes.fromhex("6ba7b8129dad11d180b400c04fd430c8")


def uuid7_of(unix_ms: int, random_bytes: bytes) -> str:
    """Return the UUIDv7 (RFC 9562) of Unix milliseconds and the first ten of these bytes; such ids sort by time."""
    rand = int.from_bytes(random_bytes[:10], "big")
    value = (unix_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (rand >> 68) << 64 | 0b10 << 62 | (rand & ((1 << 62) - 1))
    # Formatted here: a service makes several ids for every event, and objects of uuid.UUID take three times as long.
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def moment_of(uuid7: str) -> datetime:
    """Return the time at which a UUIDv7 was made."""
    return datetime.fromtimestamp(min(int(uuid7.replace("-", "")[:12], 16), _UNIX_MS_MAX) / 1000, UTC)


def derived_id(parent: str, *parts: str | int, nth: int | None = None) -> str:
    """Return the id of something that follows from `parent`, the same at each call; raises ValueError if that is no
    UUID.

    Decisions derive the ids of their events from the event that they answer, so that a repeated event repeats the very
    same messages, which every receiver then knows already. The time part is the parent's, so derived ids still sort by
    time; those of one decision sort by `nth` (RFC 9562, section 6.2: a counter in the bits that follow the time).
    """
    namespace = bytes.fromhex(parent.replace("-", ""))
    if len(namespace) != 16:
        raise ValueError(f"{parent!r} is no UUID")
    digest = _digest(namespace, parts)
    if nth is not None:
        digest = (min(nth, NTH_MAX) << 4 | digest[1] & 0xF).to_bytes(2, "big") + digest[2:]
    return uuid7_of(int.from_bytes(namespace[:6], "big"), digest)


def named_id(at: datetime, *parts: str | int) -> str:
    """Return the id of something that `parts` and a time identify, the same at each call."""
    return uuid7_of(int(at.timestamp() * 1000), _digest(_NAMESPACE_OID, parts))


def _digest(namespace: bytes, parts: tuple[str | int, ...]) -> bytes:
    """Return the bytes of UUIDv5 (RFC 9562, section 5.5)."""
    named = "/".join(map(str, parts)).encode()
    digest = bytearray(hashlib.sha1(namespace + named, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def checked_name(name: str, what: str) -> str:
    """Return `name` if it can be one token of a subject; raises ValueError with what is allowed if not."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r} is not a valid name: use 1 to {NAME_MAX_CHARS} letters, digits and inner hyphens"
        )
    return name
