"""Memory for shards is taken only where there is some, whoever takes it at the same time."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.node.proc.machine_memory import available_bytes
from holdfast_vault.shelf import memory_budget
from holdfast_vault.shelf.memory_budget import MemoryBudget

MB = 1 << 20


class Machine:
    """So much memory, and segments that are made when the test says so."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Semaphore(0)

    def available(self) -> int:
        return self.nbytes

    def segment(self, name: str, nbytes: int, absent: frozenset[int], *, is_fresh: bool) -> object:
        self.begun.release()
        assert self.may_go_on.acquire(timeout=30)
        self.nbytes -= nbytes
        return _Segment(nbytes)


class _Segment:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.nbytes_taken = nbytes
        self.nbytes_to_come = 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Machine]:
    def make(nbytes: int) -> Machine:
        it = Machine(nbytes)
        monkeypatch.setattr(memory_budget, "available_bytes", it.available)
        monkeypatch.setattr(memory_budget, "Segment", it.segment)
        return it

    return make


def asking(memory: MemoryBudget, nbytes: int, outcomes: list[int]) -> threading.Thread:
    def ask() -> None:
        try:
            outcomes.append(memory.make("", nbytes).nbytes)
        except OSError as error:
            outcomes.append(-(error.errno or 0))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_what_is_there_once_is_given_once(machine: Callable[[int], Machine]) -> None:
    there, outcomes = machine(15), list[int]()
    memory = MemoryBudget(0, list)
    threads = [asking(memory, 10, outcomes) for _ in range(3)]
    # The others neither have it nor are refused while it may come to nothing.
    assert there.begun.acquire(timeout=30)
    assert not outcomes
    for _ in range(3):
        there.may_go_on.release()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [-errno.ENOMEM, -errno.ENOMEM, 10]


def test_where_there_is_enough_nobody_waits_for_others(machine: Callable[[int], Machine]) -> None:
    there, outcomes = machine(30), list[int]()
    memory = MemoryBudget(0, list)
    threads = [asking(memory, 10, outcomes) for _ in range(3)]
    for _ in range(3):
        assert there.begun.acquire(timeout=30)
    for _ in range(3):
        there.may_go_on.release()
    for thread in threads:
        thread.join()
    assert outcomes == [10, 10, 10]


def write(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("line", "group", "files"),
    [
        (
            "0::/pod/vault",
            "pod",
            {"memory__max": f"{640 * MB}\n", "memory__current": f"{500 * MB}\n", "memory__stat": "inactive_file 0\n"},
        ),
        (
            "4:memory:/pod/vault",
            "memory/pod/vault",
            {
                "memory__limit_in_bytes": f"{640 * MB}\n",
                "memory__usage_in_bytes": f"{530 * MB}\n",
                "memory__stat": f"inactive_file 7\ntotal_inactive_file {30 * MB}\n",
            },
        ),
        # In a container: the path is the host's.
        (
            "4:memory:/host/pod/vault",
            "memory",
            {
                "memory__limit_in_bytes": f"{640 * MB}\n",
                "memory__usage_in_bytes": f"{500 * MB}\n",
                "memory__stat": "total_inactive_file 0\n",
            },
        ),
    ],
)
def test_the_least_of_machine_and_cgroups_counts(tmp_path: Path, line: str, group: str, files: dict[str, str]) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, meminfo="MemTotal: 3200 kB\nMemAvailable: 1100 kB\nHugePages_Total: 0\n")
    write(proc / "self", cgroup=f"12:cpu,cpuacct:/\n{line}\n")
    write(cgroups / "pod" / "vault", memory__max="max\n")
    assert available_bytes(proc, cgroups) == 1000 << 10
    write(proc, meminfo=f"MemTotal: {320 << 20} kB\nMemAvailable: {200 << 20} kB\n")
    assert available_bytes(proc, cgroups) == 190 << 30
    write(cgroups / group, **files)
    assert available_bytes(proc, cgroups) == 120 * MB
