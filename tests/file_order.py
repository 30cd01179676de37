"""The order in which `make test` gives files of tests to its workers.

Tests of processes wait most of the time, all others compute. So one worker begins with the files that compute: they
take what the processes of the other tests leave of the cores. Once there are none left, it goes on as the others do.
The others do not collect the tests that compute: thousands, from hundreds of files that each worker would compile.
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


def collects_all(worker: str, workers: int) -> bool:
    """Return True for the worker that has the tests which compute too, and for one that replaces a dead worker."""
    return not 0 < int(worker.removeprefix("gw")) < workers


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

    def _check_nodes_have_same_collection(self) -> bool:
        """Return True if each worker has all tests, or those of them that wait."""
        fullest = max(self.registered_collections, key=lambda node: len(self.registered_collections[node]))
        everything = self.registered_collections.pop(fullest)
        waiting = [test for test in everything if folder(test) in WAITING]
        # What the first one has is what there is to do.
        self.registered_collections = {fullest: everything, **self.registered_collections}
        if all(has in (everything, waiting) for has in self.registered_collections.values()):
            return True
        return bool(super()._check_nodes_have_same_collection())

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_all = len(self.registered_collections[node]) == len(self.collection or ())
        chosen = next(iter(self.workqueue))
        if not has_all:
            waiting = next((file for file in self.workqueue if folder(file) in WAITING), None)
            if waiting is None:
                node.shutdown()
                return
            chosen = waiting
        elif node.gateway.id == COMPUTES_FIRST:
            chosen = next((file for file in self.workqueue if folder(file) not in WAITING), chosen)
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
