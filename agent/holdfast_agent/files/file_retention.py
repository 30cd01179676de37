"""A node keeps the files of the jobs that began there last; those of the others go when a job begins."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping

import structlog

from holdfast_agent.files.directories import Directories
from holdfast_agent.files.spool import Spool
from holdfast_agent.watching.watcher import logs_key, model_key, reports_key, steps_key

log = structlog.get_logger(__name__)


def outdated(jobs: Mapping[str, float], present: str, jobs_max: int) -> list[str]:
    """The jobs to forget, the oldest first: all but `present` and the `jobs_max` others that began last."""
    others = sorted((job for job in jobs if job != present), key=lambda job: (jobs[job], job))
    return others[: max(0, len(others) - jobs_max)]


class FileRetention:
    """Forgets in the background: nothing waits for the disk, least of all a restart."""

    def __init__(self, directories: Directories, spool: Spool, jobs_max: int) -> None:
        self._directories = directories
        self._spool = spool
        self._jobs_max = jobs_max
        self._present = ""
        self._begun = asyncio.Event()

    def begin(self, job: str) -> None:
        """A generation of this job begins; no other job has ranks here."""
        if job != self._present:
            self._present = job
            self._begun.set()

    async def run(self) -> None:
        """Forget whenever another job begins, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            try:
                self._set_aside_outdated()
                await asyncio.to_thread(self._directories.remove_set_aside)
            except (OSError, sqlite3.Error) as error:
                # Ranks are worth more than the room; it is tried again when the next job begins.
                log.warning("earlier jobs cannot be forgotten", error=str(error))

    def _set_aside_outdated(self) -> None:
        """Without a pause, so that no job can begin here meanwhile: one of the same name finds all or nothing."""
        jobs = outdated(self._directories.jobs(), self._present, self._jobs_max)
        if not jobs:
            return
        log.info("forgets the files of earlier jobs", jobs=jobs)
        # First how much of the reports was read: a later file of that name is read from its beginning.
        self._spool.forget([key(job) for job in jobs for key in (steps_key, reports_key, logs_key, model_key)])
        for job in jobs:
            self._directories.set_aside(job)
