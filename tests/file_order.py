"""The order in which `make test` gives files of tests to its workers.

Tests of processes wait most of the time, all others compute. So one worker begins with the files that compute: they
take what the processes of the other tests leave of the cores. Once there are none left, it goes on as the others do.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

FOLDERS = ("e2e", "integration", "sim", "golden", "unit")
WAITING = ("e2e", "integration")
COMPUTES_FIRST = "gw0"
ACCELERATOR = "tests/integration/accelerator/"
MEASURING = ("test_slow_jobs.py",)
"""What compares the pace of a job with its pace before: not while each worker starts its first cluster."""


def folder(test: str) -> str:
    """Return the folder of a file, or of a test in it, by its path from the root of the repository."""
    return test.split("/")[1]


def place(test: pytest.Item) -> tuple[bool, int, bool, int]:
    """Return the place of a test in the order: what takes long is first, so that no worker ends with it alone.

    The files that one worker has together take longest, then a test of a whole cluster, and of two files the larger
    one, as a rule.
    """
    return (
        not test.nodeid.startswith(ACCELERATOR),
        FOLDERS.index(folder(test.nodeid)),
        test.path.name in MEASURING,
        -test.path.stat().st_size,
    )


class FileOrder(LoadFileScheduling):
    """Gives each worker that has nearly done its files the next one in order."""

    def _split_scope(self, nodeid: str) -> str:
        # One worker has the processes with a device, which all its files use.
        path: str = super()._split_scope(nodeid)
        return ACCELERATOR if path.startswith(ACCELERATOR) else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == COMPUTES_FIRST:
            computing = next((file for file in self.workqueue if folder(file) not in WAITING), None)
            if computing is not None:
                self.workqueue.move_to_end(computing, last=False)
        super()._assign_work_unit(node)
