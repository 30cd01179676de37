"""What a check is, and what it reads. Pure.

A check of one's own needs no more than this file: a function that takes the settings (`InspectionPolicy`) and returns a
`Check`, named as an entry point in the group `holdfast.inspections`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

Confidence = Literal["evict", "tolerate", "hint"]
Scope = Literal["node", "host"]

ENTRY_POINTS = "holdfast.inspections"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: with what (`device`), what of it (`kind`), in words, with what was read.

    None: as the check has it. `is_momentary`: it happened and is over, `times` times since the last look; anything else
    lasts until a reading is without it.
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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found. `unread` is what could not be looked at, and why and what would cure it: device -> words, ""
    for the check as a whole. `absent`: why there is nothing to look at on this machine. `seen`: what was looked at,
    device -> how it is.
    """

    troubles: tuple[Trouble, ...] = ()
    unread: dict[str, str] = {}
    absent: str = ""
    seen: dict[str, str] = {}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `read` may block: it has a thread of its own, one at a time, and `limit_s`.

    `misses`: so many readings in a row with a trouble until it is an alert. `hang`: what it means if `read` does not
    come back within the limit; None: that the check is broken. `quiet_s`: for so long the same momentary trouble is not
    said again. `compares`: one look alone says less than two. `wake`: a descriptor that can be read when there is
    something to see before the interval is over.
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
    """A reading that says nothing of health, good or bad."""
    return Reading(unread={device: why})
