"""What was traced, cut into events that a message can carry. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

PART_BYTES_MAX = 500_000
"""Half of what an event may have."""

T = TypeVar("T", bound=msgspec.Struct)


def in_parts(items: Iterable[T]) -> list[tuple[T, ...]]:
    """The items in order, in parts of a bounded size; one part at least, which may be empty."""
    parts: list[tuple[T, ...]] = []
    part: list[T] = []
    size = 0
    for item in items:
        of_item = len(msgspec.json.encode(item))
        if part and size + of_item > PART_BYTES_MAX:
            parts.append(tuple(part))
            part, size = [], 0
        part.append(item)
        size += of_item
    if part or not parts:
        parts.append(tuple(part))
    return parts
