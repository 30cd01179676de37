"""The order in which `make test` gives files of tests to its workers.

Tests of whole clusters take most of the processor time, tests of a few processes wait most of the time, all others
compute. So that each of them takes what the others leave of the cores, one worker begins with the simulations, one or
two with whole clusters, the others with the tests that wait. A worker goes on with what is left of the other files.
Only the first collects the tests that compute: thousands, from hundreds of files that each worker would compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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
OF_THEIR_OWN = (ACCELERATOR + "contexts/",)
"""Tests of an accelerator that do not use the processes which those of one worker share."""
LONG = (
    "test_attempts.py",
    "test_bad_numbers.py",
    "test_drills.py",
    "test_hangs.py",
    "test_kept_in_memory.py",
    "test_power_loss.py",
    "test_services_killed.py",
    "test_steps_kept_apart.py",
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
    """Gives each worker that has nearly done its files the next one in order.

    A worker begins when it has collected: the one that has all tests takes several times as long as the others.
    """

    _files: Counter[str] | None = None
    """Files by folder, of all that there is to do."""

    @property
    def collection_is_completed(self) -> bool:
        """Return True if there is a worker that can begin."""
        return bool(self.registered_collections)

    def _split_scope(self, nodeid: str) -> str:
        # One worker has the processes with a device, which all its files use.
        path: str = super()._split_scope(nodeid)
        return ACCELERATOR if path.startswith(ACCELERATOR) and not path.startswith(OF_THEIR_OWN) else path

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Add the files that no worker before this one has collected to what there is to do."""
        others = list(self.registered_collections)
        self.registered_collections[node] = list(collection)
        if others and not self._has_what_others_have(node, others):
            del self.registered_collections[node]
            node.shutdown()
            return
        known = set[str]().union(*(self.registered_collections[other] for other in others))
        for test in collection:
            if test not in known:
                self.workqueue.setdefault(self._split_scope(test), {})[test] = False

    def _has_what_others_have(self, node: WorkerController, others: Sequence[WorkerController]) -> bool:
        """Return True if a worker has the same tests as the others, or the same of those that wait; else report it."""
        registered, fullest = self.registered_collections, self._fullest(others)
        mine, theirs = registered[node], registered[fullest]
        if len(mine) != len(theirs):
            mine, theirs = ([test for test in each if folder(test) in WAITING] for each in (mine, theirs))
        self.registered_collections = {fullest: theirs, node: mine}
        is_same = bool(super()._check_nodes_have_same_collection())
        self.registered_collections = registered
        return is_same

    def _fullest(self, nodes: Iterable[WorkerController]) -> WorkerController:
        return max(nodes, key=lambda node: len(self.registered_collections[node]))

    def schedule(self) -> None:
        """Give each worker that has collected something to do."""
        for node in self.registered_collections:
            # A worker does a test when it knows the next one, and a file may have only one.
            for _ in range(2):
                if node in self.assigned_work:
                    self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        # A worker that is still collecting gets work when it has.
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_all = len(self.registered_collections[node]) == len(
            self.registered_collections[self._fullest(self.registered_collections)]
        )
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
