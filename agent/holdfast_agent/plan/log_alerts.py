"""What is told of a crew's signs: the first of each kind and rank at once, then how many there were. Pure."""

from __future__ import annotations

from typing import NamedTuple

from holdfast_agent.plan.log_signatures import Signature

AGAIN_AFTER_S = 30.0
AGAIN_FACTOR = 2.0
AGAIN_MAX_S = 900.0
LINES_MAX = 3


class SignKey(NamedTuple):
    """What counts as the same."""

    rank: int
    stream: str
    signature: str


class Sign(NamedTuple):
    """What is to be told: the line came `times`, `lines` are the first."""

    key: SignKey
    symptom: str
    lines: tuple[str, ...]
    times: int


class _Kind:
    def __init__(self, symptom: str) -> None:
        self.symptom = symptom
        self.lines: list[str] = []
        self.count = 0
        self.due_at = 0.0
        self.pause_s = AGAIN_AFTER_S


class Signs:
    """The signs of one crew. `now` is a monotonic clock in seconds."""

    def __init__(self) -> None:
        self._kinds: dict[SignKey, _Kind] = {}

    def saw(self, rank: int, stream: str, signature: Signature, line: str) -> None:
        """A rank printed this line."""
        key = SignKey(rank, stream, signature.name)
        kind = self._kinds.setdefault(key, _Kind(signature.symptom))
        kind.count += 1
        if len(kind.lines) < LINES_MAX:
            kind.lines.append(line)

    @property
    def due_at(self) -> float | None:
        """When there is something to tell next."""
        return min((kind.due_at for kind in self._kinds.values() if kind.count), default=None)

    def take_due(self, now: float) -> list[Sign]:
        """What is to be told now."""
        due: list[Sign] = []
        for key, kind in self._kinds.items():
            if kind.count and kind.due_at <= now:
                due.append(Sign(key, kind.symptom, tuple(kind.lines), kind.count))
                kind.count, kind.lines = 0, []
                kind.due_at = now + kind.pause_s
                kind.pause_s = min(kind.pause_s * AGAIN_FACTOR, AGAIN_MAX_S)
        return due
