"""Finished jobs, for services whose streams have no order with each other."""

from __future__ import annotations

KEPT_MAX = 1000


class FinishedJobs:
    """The jobs that ended last, in memory: a late event of a finished job must not recreate its state. Names are never
    reused."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._jobs: dict[str, None] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def add(self, job: str) -> None:
        self._jobs[job] = None
        if len(self._jobs) > self._kept_max:
            del self._jobs[next(iter(self._jobs))]
