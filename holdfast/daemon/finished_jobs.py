"""Jobs that are over, for those who hear of them: the streams are in no order with each other."""

from __future__ import annotations

KEPT_MAX = 1000


class FinishedJobs:
    """The jobs that ended last, in memory: what comes late of one of them must not begin it anew.

    A job's name is never used again, so it needs no more than that.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._jobs: dict[str, None] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def add(self, job: str) -> None:
        """This job is over; harmless when repeated."""
        self._jobs[job] = None
        if len(self._jobs) > self._kept_max:
            del self._jobs[next(iter(self._jobs))]
