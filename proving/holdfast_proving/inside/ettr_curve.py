"""ETTR over time: the productive share since the beginning, and within the last hour (ByteRobust, Fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.training import Training

SAMPLED_EVERY_S = 600.0
HOUR = 6
"""Samples within an hour."""


class Point(NamedTuple):
    at_s: float
    cumulative: float
    """Productive share of all time so far, over all jobs."""
    last_hour: float


class EttrCurve:
    def __init__(self, agenda: Agenda, trainings: Sequence[Training], from_s: float) -> None:
        """Sample from the time on at which the jobs are submitted."""
        self._agenda = agenda
        self._trainings = trainings
        self._from_s = from_s
        self._productive_s: list[float] = []
        self._complete_s = 0.0
        agenda.at(from_s, self._sample)

    def _sample(self) -> None:
        if self._productive_s:
            # A job that is complete loses no time.
            self._complete_s += SAMPLED_EVERY_S * sum(it.is_complete for it in self._trainings)
        done_s = sum(it.productive_s for it in self._trainings) + self._complete_s
        # A step that turns out to be spoiled was counted while nobody knew.
        self._productive_s.append(max(done_s, self._productive_s[-1] if self._productive_s else 0.0))
        self._agenda.after(SAMPLED_EVERY_S, self._sample)

    def points(self) -> list[Point]:
        """Return a point for each sample from the first whole hour on."""
        found = []
        for number in range(HOUR, len(self._productive_s)):
            done_s, long_s = self._productive_s[number], number * SAMPLED_EVERY_S * len(self._trainings)
            hour_s = (done_s - self._productive_s[number - HOUR]) / len(self._trainings)
            at_s = self._from_s + number * SAMPLED_EVERY_S
            found.append(Point(at_s, min(1.0, done_s / long_s), min(1.0, hour_s / (HOUR * SAMPLED_EVERY_S))))
        return found
