"""The beginnings of a training's runs, and the ends that a decision brought about: what judges of restarts read."""

from __future__ import annotations

from typing import NamedTuple


class Start(NamedTuple):
    """The first step of a run."""

    at_s: float
    job: str
    generation: int
    from_step: int
    is_spoiled: bool
    """It went on from a step whose numbers are wrong."""
    is_corrupt: bool
    """It went on from a spoiled step, whether numbers show that or not."""


class Stop(NamedTuple):
    """A decision that ended a run which made steps."""

    at_s: float
    job: str
    members: tuple[str, ...]
    is_spoiled: bool
    is_slow: bool
