"""Notes of the workload's ranks, read from their files as they grow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.05
"""Coarse on purpose: the figures come from the ranks' own stamps, and looking costs time on a small machine."""


class Timeout(RuntimeError):
    """A record that did not arrive in time."""


class Step(NamedTuple):
    """A completed step. `at` is in seconds since the epoch, `loss` as the rank wrote it."""

    at: float
    number: int
    loss: str


class Life:
    """One process of a rank. Times are in seconds since the epoch, 0 while it has not come so far.

    `restored_step` is the step that its state was of when it began, 0 for none.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.began = 0.0
        self.joined = 0.0
        self.restored = 0.0
        self.restored_step = 0
        self.done = 0.0
        self.steps: list[Step] = []

    def note(self, at: float, what: str, step: int, value: str) -> None:
        if what == "step":
            self.steps.append(Step(at, step, value))
        else:
            setattr(self, what, at)
        if what == "restored":
            self.restored_step = step


class Generation(NamedTuple):
    """All ranks of one generation, once each has completed a step. Times are the last rank's."""

    pids: dict[int, int]
    began: float
    joined: float
    restored: float
    first_step: float


class Records:
    """The files of one run's ranks."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self._paths = [directory / f"rank-{rank}" for rank in range(world_size)]
        self._offsets = [0] * world_size
        self.lives: list[list[Life]] = [[] for _ in range(world_size)]
        """The processes of each rank, oldest first."""

    def read(self) -> None:
        """Take in what has been noted since the last call; an unfinished last line waits for its end."""
        for rank, path in enumerate(self._paths):
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets[rank])
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[rank] += len(whole)
            for line in whole.decode().splitlines():
                at, pid, what, step, value = line.split(" ")
                if not self.lives[rank] or self.lives[rank][-1].pid != int(pid):
                    self.lives[rank].append(Life(int(pid)))
                self.lives[rank][-1].note(float(at), what, int(step), value)

    def newest(self, but: dict[int, int] | None = None) -> Generation | None:
        """The newest generation, if every rank of it has completed a step and none is a process of `but`."""
        self.read()
        found = {rank: lives[-1] for rank, lives in enumerate(self.lives) if lives}
        if len(found) < len(self.lives) or not all(life.steps for life in found.values()):
            return None
        if but and any(life.pid == but[rank] for rank, life in found.items()):
            return None
        return Generation(
            pids={rank: life.pid for rank, life in found.items()},
            began=max(life.began for life in found.values()),
            joined=max(life.joined for life in found.values()),
            restored=max(life.restored for life in found.values()),
            first_step=max(life.steps[0].at for life in found.values()),
        )

    def await_generation(self, limit_s: float, *, but: dict[int, int] | None = None, steps: int = 1) -> Generation:
        """Wait until a generation with other processes than `but` trains, and rank 0 of it has done some steps.

        Raises:
            Timeout: it does not within `limit_s`.
        """
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            generation = self.newest(but)
            if generation is not None and len(self.lives[0][-1].steps) >= steps:
                return generation
            time.sleep(POLL_S)
        raise Timeout(f"no generation of {len(self.lives)} ranks completed {steps} steps within {limit_s:g} s")

    def await_end(self, limit_s: float) -> None:
        """Wait until every rank has done its last step.

        Raises:
            Timeout: not within `limit_s`.
        """
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            self.read()
            if all(lives and lives[-1].done for lives in self.lives):
                return
            time.sleep(POLL_S)
        raise Timeout(f"the ranks did not end within {limit_s:g} s")
