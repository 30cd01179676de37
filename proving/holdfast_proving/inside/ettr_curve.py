"""ETTR over time: the productive share since the beginning, and within the last hour (ByteRobust, Fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast_proving.truth.generator import HOUR_S
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.training import Training

SAMPLED_EVERY_S = 600.0
HOUR = 6
"""Samples within an hour."""


class Point(NamedTuple):
    at_s: float
    cumulative: float
    """Productive share of all time so far, over all jobs: from the submission of each until it is complete, or people
    stop it."""
    last_hour: float


class EttrCurve:
    def __init__(self, agenda: Agenda, trainings: Sequence[Training], from_s: float) -> None:
        """Sample from the time on at which the first jobs are submitted."""
        self._agenda = agenda
        self._trainings = trainings
        self._from_s = from_s
        self._productive_s: list[float] = []
        self._submitted_s: list[float] = []
        agenda.at(from_s, self._sample)

    def _sample(self) -> None:
        done_s = sum(it.productive_s for it in self._trainings)
        # A step that turns out to be spoiled was counted while nobody knew.
        self._productive_s.append(max(done_s, self._productive_s[-1] if self._productive_s else 0.0))
        self._submitted_s.append(sum(self._since_submission_s(it) for it in self._trainings))
        self._agenda.after(SAMPLED_EVERY_S, self._sample)

    def _since_submission_s(self, training: Training) -> float:
        plan = training.plan
        people_s = plan.stopped_at_h * HOUR_S or float("inf")
        until_s = min(self._agenda.seconds, people_s, training.completed_s or float("inf"))
        return max(0.0, until_s - self._from_s - plan.submitted_at_h * HOUR_S)

    def points(self) -> list[Point]:
        """Return a point for each sample from the first whole hour on."""
        found = []
        for number in range(HOUR, len(self._productive_s)):
            before, at_s = number - HOUR, self._from_s + number * SAMPLED_EVERY_S
            total = _share(self._productive_s[number], self._submitted_s[number])
            done_s = self._productive_s[number] - self._productive_s[before]
            hour = _share(done_s, self._submitted_s[number] - self._submitted_s[before])
            found.append(Point(at_s, total, hour))
        return found


def _share(productive_s: float, of_s: float) -> float:
    return min(1.0, productive_s / of_s) if of_s > 0.0 else 1.0
