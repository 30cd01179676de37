"""The order in which `make test` gives files of tests to its workers.

Tests of whole clusters take most of the processor time, tests of a few processes wait most of the time, all others
compute. So that each of them takes what the others leave of the cores, one worker begins with the simulations, one or
two with whole clusters, the others with the tests that wait. A worker goes on with what is left of the other files.
Only the first collects the tests that compute: thousands, from hundreds of files that each worker would compile.
"""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

FOLDERS = ("e2e", "integration", "sim", "golden", "unit")
WAITING = ("e2e", "integration")
COMPUTES_FIRST = "gw0"
SMALL = "unit"
"""Files that compute for a moment each: spread over the whole time, they fill the moments in which others wait."""
CLUSTERS_FIRST = ("gw2", "gw3")
ACCELERATOR = "tests/integration/accelerator/"
LONG = (
    "test_attempts.py",
    "test_hangs.py",
    "test_kept_in_memory.py",
    "test_power_loss.py",
    "test_services_killed.py",
    "test_stopping.py",
    "test_training_logs.py",
    "test_waiting_for_nodes.py",
)
"""Tests of whole clusters that take half a minute and more, some of them small files."""
MEASURING = ("test_slow_jobs.py",)
"""What compares the pace of a job with its pace before: not while workers start their first clusters."""


def collects_all(worker: str, workers: int) -> bool:
    """Return True for the worker that has the tests which compute too, and for one that replaces a dead worker."""
    return not 0 < int(worker.removeprefix("gw")) < workers


def order(worker: str) -> tuple[str, ...]:
    """Return the folders in the order in which a worker takes their files."""
    if worker in CLUSTERS_FIRST:
        return FOLDERS
    # What is left of whole clusters is last: a worker starts another one for them.
    waiting, computing = ("integration", "e2e"), ("sim", "golden", "unit")
    return (*computing, *waiting) if worker == COMPUTES_FIRST else (*waiting, *computing)


def folder(test: str) -> str:
    """Return the folder of a file, or of a test in it, by its path from the root of the repository."""
    return test.split("/")[1]


def place(test: pytest.Item) -> tuple[bool, int, int, int]:
    """Return the place of a test in the order: what takes long is first, so that no worker ends with it alone.

    The files that one worker has together take longest, then a test of a whole cluster, and of two other files the
    larger one, as a rule.
    """
    name = test.path.name
    return (
        not test.nodeid.startswith(ACCELERATOR),
        FOLDERS.index(folder(test.nodeid)),
        0 if name in LONG else 1 if name in MEASURING else 2,
        -test.path.stat().st_size,
    )


class FileOrder(LoadFileScheduling):
    """Gives each worker that has nearly done its files the next one in order."""

    _files: Counter[str] | None = None
    """Files by folder, of all that there is to do."""

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
        taken = [each for each in order(node.gateway.id) if has_all or each in WAITING]
        if has_all and self._is_ahead_with_small_files():
            taken.sort(key=lambda each: each == SMALL)
        chosen = next((file for each in taken for file in self.workqueue if folder(file) == each), None)
        if chosen is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _is_ahead_with_small_files(self) -> bool:
        """Return True if less of them is left than of the tests that wait."""
        left = Counter(map(folder, self.workqueue))
        self._files = self._files or left
        waiting, waiting_left = (sum(files[each] for each in WAITING) for files in (self._files, left))
        return left[SMALL] * waiting < self._files[SMALL] * waiting_left
