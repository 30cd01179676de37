"""The interface of a check, for built-in and custom inspections. Pure.

A custom inspection needs only this file: a function from the settings (`InspectionPolicy`) to a `Check`, as an entry
point in the group `holdfast.inspections`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

Confidence = Literal["evict", "tolerate", "hint"]
Scope = Literal["node", "host"]

ENTRY_POINTS = "holdfast.inspections"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A fault. Where a field is None, the check's own value counts."""

    device: str = ""
    kind: str = ""
    detail: str = ""
    lines: tuple[str, ...] = ()
    """Lines that were read."""
    confidence: Confidence | None = None
    symptom: str | None = None
    scope: Scope | None = None
    is_momentary: bool = False
    """True if it happened `times` times since the last reading and is over; other troubles last until a reading lacks
    them."""
    times: int = 1
    shared: str = ""
    """Thing at fault if it is not the node's own, as a text that is equal on all nodes ("address 10.0.0.1")."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a reading, by device ("" for the whole check)."""

    troubles: tuple[Trouble, ...] = ()
    unread: dict[str, str] = {}
    """Reason and cure for what could not be read."""
    absent: str = ""
    """Reason why this machine has nothing to read."""
    seen: dict[str, str] = {}
    """State of what was read."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check."""

    name: str
    source: str
    read: Callable[[], Reading]
    """Function that reads the state. It may block: it runs in its own thread, one call at a time, within `limit_s`."""
    interval_s: float
    slow_interval_s: float | None = None
    """Interval while a job of the node is slow, if the check may show why: the node may soon be replaced."""
    limit_s: float = 10.0
    misses: int = 1
    """Consecutive readings with a trouble before it is an alert."""
    confidence: Confidence = "hint"
    symptom: str = ""
    scope: Scope = "node"
    hang: Trouble | None = None
    """Trouble if `read` exceeds the limit; None: the check itself is broken."""
    quiet_s: float = 0.0
    """Minimum time between reports of equal momentary troubles."""
    compares: bool = False
    """True if one reading is less useful than two."""
    wake: Callable[[], int | None] | None = None
    """Descriptor that becomes readable when there is something to read early."""


def unreadable(why: str, device: str = "") -> Reading:
    """Return a reading without information about health."""
    return Reading(unread={device: why})
