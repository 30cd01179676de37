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
    """A fault: device, kind, description, and lines that were read; None: the check's own value. `is_momentary`: it
    happened `times` times since the last reading and is over; other troubles last until a reading lacks them.
    `shared`: what is at fault if it is not the node's own, in words that are equal on all nodes ("address 10.0.0.1").
    """

    device: str = ""
    kind: str = ""
    detail: str = ""
    lines: tuple[str, ...] = ()
    confidence: Confidence | None = None
    symptom: str | None = None
    scope: Scope | None = None
    is_momentary: bool = False
    times: int = 1
    shared: str = ""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reading, by device ("" for the whole check). `unread`: reason and cure for what could not be
    read. `absent`: why this machine has nothing to read. `seen`: the state of what was read.
    """

    troubles: tuple[Trouble, ...] = ()
    unread: dict[str, str] = {}
    absent: str = ""
    seen: dict[str, str] = {}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check. `read` may block: it has its own thread, one call at a time, and `limit_s`. `misses`: consecutive
    readings with a trouble before it is an alert. `hang`: the trouble if `read` exceeds the limit; None: the check
    itself is broken. `quiet_s`: minimum time between reports of equal momentary troubles. `compares`: one reading is
    less useful than two. `wake`: a descriptor that becomes readable when there is something to read early.
    """

    name: str
    source: str
    read: Callable[[], Reading]
    interval_s: float
    limit_s: float = 10.0
    misses: int = 1
    confidence: Confidence = "hint"
    symptom: str = ""
    scope: Scope = "node"
    hang: Trouble | None = None
    quiet_s: float = 0.0
    compares: bool = False
    wake: Callable[[], int | None] | None = None


def unreadable(why: str, device: str = "") -> Reading:
    """Return a reading without information about health."""
    return Reading(unread={device: why})
