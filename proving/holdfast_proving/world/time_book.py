"""Where a job's time went: each second since its submission has one cause."""

from __future__ import annotations

from typing import Literal, NamedTuple

Cause = Literal[
    "productive",
    "redone",
    "slow",
    "spoiled",
    "corrupt",
    "unnoticed",
    "checks",
    "replay",
    "waiting_for_machines",
    "pause",
    "starting",
    "ended",
]
"""`productive`: new and sound steps, at the healthy pace. `redone`: steps that were done before, or not completed.
`slow`: what steps took longer. `spoiled`: steps after bad numbers. `corrupt`: steps in a spoiled state that no number
shows. `unnoticed`: no step follows, and no decision yet. `ended`: the job was given up, and nobody has submitted it
again."""


class Stretch(NamedTuple):
    """An unbroken time with one cause, in which no step was made."""

    cause: Cause
    since_s: float
    until_s: float


class TimeBook:
    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.spent_s: dict[Cause, float] = {}
        self._cause: Cause | None = None
        self._since_s = 0.0

    def enter(self, cause: Cause | None, at_s: float) -> None:
        """Spend the time from now on for this cause; None: steps are made, and `spend` says what they were worth."""
        if self._cause is not None:
            self.spend(self._cause, at_s - self._since_s)
            self._note(self._cause, at_s)
        self._cause, self._since_s = cause, at_s

    def _note(self, cause: Cause, at_s: float) -> None:
        last = self.stretches[-1] if self.stretches else None
        if last and last.cause == cause and last.until_s == self._since_s:
            self.stretches[-1] = last._replace(until_s=at_s)
        elif at_s > self._since_s:
            self.stretches.append(Stretch(cause, self._since_s, at_s))

    def spend(self, cause: Cause, seconds: float) -> None:
        self.spent_s[cause] = self.spent_s.get(cause, 0.0) + seconds

    @property
    def is_training(self) -> bool:
        return self._cause is None

    @property
    def total_s(self) -> float:
        return sum(self.spent_s.values())

    @property
    def lost_s(self) -> float:
        return self.total_s - self.spent_s.get("productive", 0.0)
