"""Rate limit for log alerts: the first line of each kind and rank is due at once, repetitions at growing intervals."""

from __future__ import annotations

from typing import NamedTuple

from holdfast_agent.plan.log_lines.log_signatures import Signature

REPEAT_AFTER_S = 30.0
REPEAT_FACTOR = 2.0
REPEAT_MAX_S = 900.0
LINES_MAX = 3


class AlertKey(NamedTuple):
    """The identity by which lines are counted as repetitions."""

    rank: int
    stream: str
    signature: str


class DueAlert(NamedTuple):
    key: AlertKey
    symptom: str
    lines: tuple[str, ...]
    """The first lines only."""
    occurrences: int
    """Number of lines since the last alert of this key."""


class _Pending:
    def __init__(self, symptom: str) -> None:
        self.symptom = symptom
        self.lines: list[str] = []
        self.count = 0
        self.due_at = 0.0
        self.pause_s = REPEAT_AFTER_S


class LogAlerts:
    """The alerts of the ranks of one generation on a node. `now` is a monotonic clock in seconds.

    The interval of a kind never shrinks again: what was reported is known until the ranks are started again.
    """

    def __init__(self) -> None:
        self._pending: dict[AlertKey, _Pending] = {}

    def add(self, rank: int, stream: str, signature: Signature, line: str) -> None:
        """Count a line that matched; the first of its kind is due at once."""
        pending = self._pending.setdefault(AlertKey(rank, stream, signature.name), _Pending(signature.symptom))
        pending.count += 1
        if len(pending.lines) < LINES_MAX:
            pending.lines.append(line)

    @property
    def due_at(self) -> float | None:
        """Time of the next alert; None if no line is pending."""
        return min((pending.due_at for pending in self._pending.values() if pending.count), default=None)

    def take_due(self, now: float) -> list[DueAlert]:
        """Return the alerts to report now, and start their next interval."""
        due: list[DueAlert] = []
        for key, pending in self._pending.items():
            if pending.count and pending.due_at <= now:
                due.append(DueAlert(key, pending.symptom, tuple(pending.lines), pending.count))
                pending.count, pending.lines = 0, []
                pending.due_at = now + pending.pause_s
                pending.pause_s = min(pending.pause_s * REPEAT_FACTOR, REPEAT_MAX_S)
        return due
