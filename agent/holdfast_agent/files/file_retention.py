"""Retention of job files: a node keeps the files of the jobs that last began there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping

import structlog

from holdfast_agent.files.directories import Directories
from holdfast_agent.files.spool import Spool
from holdfast_agent.watching.watcher import checks_key, logs_key, model_key, reports_key, steps_key

log = structlog.get_logger(__name__)


def outdated(jobs: Mapping[str, float], present: str, jobs_max: int) -> list[str]:
    """Return the jobs to remove, oldest first: all but `present` and the `jobs_max` others that began last."""
    others = sorted((job for job in jobs if job != present), key=lambda job: (jobs[job], job))
    return others[: max(0, len(others) - jobs_max)]


class FileRetention:
    """Removes files in the background, so that no restart waits for the disk. `on_removed` gets each job removed."""

    def __init__(
        self, directories: Directories, spool: Spool, jobs_max: int, on_removed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._directories = directories
        self._spool = spool
        self._jobs_max = jobs_max
        self._on_removed = on_removed
        self._present = ""
        self._begun = asyncio.Event()

    def begin(self, job: str) -> None:
        """Note that a generation of this job begins."""
        if job != self._present:
            self._present = job
            self._begun.set()

    async def run(self) -> None:
        """Remove outdated files whenever another job begins, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            try:
                self._set_aside_outdated()
                await asyncio.to_thread(self._directories.remove_set_aside)
            except (OSError, sqlite3.Error) as error:
                # Ranks matter more than disk space; removal is tried again when the next job begins.
                log.warning("files of earlier jobs cannot be removed", error=str(error))

    def _set_aside_outdated(self) -> None:
        """Rename without awaiting, so that no job can begin meanwhile and find half of its earlier files."""
        jobs = outdated(self._directories.jobs(), self._present, self._jobs_max)
        if not jobs:
            return
        log.info("removes the files of earlier jobs", jobs=jobs)
        # Read positions go first: a later file of the same name is read from its beginning.
        keys = (steps_key, reports_key, checks_key, logs_key, model_key)
        self._spool.forget([key(job) for job in jobs for key in keys])
        for job in jobs:
            self._directories.set_aside(job)
            self._on_removed(job)
