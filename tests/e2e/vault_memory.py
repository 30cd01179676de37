"""The memory of a node's vault, looked at from outside while the vault works: which steps it has, and what it fills."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
from cluster import Cluster
from job import Job
from jobs.arithmetic import undisturbed
from waiting import DEADLINE_S

from holdfast.node import frames
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import AskSteps, Join, ShardName, Steps
from holdfast.orders.backup import submission_ms

Words = np.ndarray[tuple[int], np.dtype[np.int64]]

MOMENT_S = 0.0005
SAMPLE_WORDS = (128 << 10) // 8


def lose(vault: int) -> None:
    """Kill a vault and its successor: what it held is lost."""
    os.killpg(os.getpgid(vault), signal.SIGKILL)


class VaultMemory:
    """What the vault of one node holds of one rank of `fold.py --distinct`, whose tensor has one value at each step."""

    def __init__(self, cluster: Cluster, job: Job, node: str, rank: int) -> None:
        self._directory = cluster.directory / "nodes" / node
        self._job = job
        (started, *_) = cluster.events(job, "generation_started")
        submitted_ms = submission_ms(datetime.fromisoformat(started["submitted_at"]))
        self._name = ShardName(job=job.name, submitted_ms=submitted_ms, world_size=job.world_size, rank=rank)
        with vault_socket.connect(self._directory) as link:
            self.pid = vault_socket.peer_pid(link)

    def has_newest(self, step: int) -> bool:
        """Whether this step is whole, and none after it. Where the rank saves, it answers when that is sealed."""
        with vault_socket.connect(self._directory) as link:
            # To a rank of the first generation it tells what it has, and asks no other vault.
            for request in (Join(name=self._name, generation=1, pid=os.getpid()), AskSteps()):
                frames.send(link, request)
                answer, _ = frames.receive(link, messages.answers)
        assert isinstance(answer, Steps)
        return [sealed.step for sealed in answer.sealed[:1]] == [step]

    def flip_a_bit(self, step: int) -> None:
        """Damage this step, and nothing else."""
        value = self._value(step)
        is_there = False
        for piece in self._pieces():
            with _words(piece, writable=True) as words:
                if np.all(words[::SAMPLE_WORDS] == value):
                    words[-1] ^= 1
                    is_there = True
        assert is_there, f"step {step} of {self._name} is not in this memory"

    def stop_halfway(self, *steps: int) -> bool:
        """Stop the vault while it fills memory with one of these steps. False, and it runs on: it was done too soon."""
        values = [self._value(step) for step in steps]
        deadline = time.monotonic() + DEADLINE_S
        # While it is stopped there is time to look: it has only moments in which nobody does.
        self.stop()
        with _first_in_line():
            while not any(has_begun for has_begun, _ in self._filled(values)):
                assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {self._name} comes to one of {steps}"
                self.go_on()
                time.sleep(MOMENT_S)
                self.stop()
        if any(has_begun and not is_whole for has_begun, is_whole in self._filled(values)):
            return True
        self.go_on()
        return False

    def stop(self) -> None:
        """Stop the vault and its successor; nothing of it moves any more."""
        os.killpg(os.getpgid(self.pid), signal.SIGSTOP)
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(MOMENT_S)

    def go_on(self) -> None:
        """Let it go on."""
        os.killpg(os.getpgid(self.pid), signal.SIGCONT)

    def _value(self, step: int) -> int:
        return undisturbed(step, self._job.world_size) + self._name.rank

    def _filled(self, values: list[int]) -> Iterator[tuple[bool, bool]]:
        """Of each piece of memory, whether there is anything of a step with one of these values in it, or all of it."""
        for piece in self._pieces():
            with _words(piece) as words:
                found = [int(np.count_nonzero(words[::SAMPLE_WORDS] == value)) for value in values]
                yield any(found), len(words[::SAMPLE_WORDS]) in found

    def _pieces(self) -> list[Path]:
        pieces: dict[int, Path] = {}
        with contextlib.suppress(FileNotFoundError):  # it is being killed
            for entry in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # a connection that has just ended
                    is_ours = f"{self._name.job}-{self._name.rank} (" in os.readlink(entry)
                    if is_ours and entry.stat().st_size:  # one that was just made has no size yet
                        pieces[entry.stat().st_ino] = entry  # each piece of memory has more than one
        return list(pieces.values())


@contextlib.contextmanager
def _first_in_line() -> Iterator[None]:
    """Who asks for a moment gets no more than that, however busy the machine is, where it may be had."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextlib.contextmanager
def _words(piece: Path, *, writable: bool = False) -> Iterator[Words]:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    memory = os.open(piece, os.O_RDWR if writable else os.O_RDONLY)
    try:
        mapping = mmap.mmap(memory, 0, access=access)
    finally:
        os.close(memory)
    yield np.frombuffer(mapping, np.int64)


def _is_stopped(thread: Path) -> bool:
    try:
        # The name, in brackets, may hold anything.
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has just ended
