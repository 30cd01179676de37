"""File systems that can hang or vanish: network file systems and those named in the settings.

A call to a dead file server never returns: each mount has its own thread, which can be abandoned, and one open call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import Mount, mount_table
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable

Paths = Callable[[], Collection[Path]]
"""The paths that a node writes to now."""


class _Question:
    """A call to one mount, in its own thread."""

    def __init__(self, point: str, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._point = point
        self.error: OSError | None = None
        self.asked_at = time.monotonic()
        self.answered = threading.Event()
        threading.Thread(target=self._run, name=f"mount {point}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._ask(self._point)
        except OSError as error:
            self.error = error
        self.answered.set()


def ask(point: str) -> None:
    """Request attributes and free space, which a file system only answers if its server does."""
    os.stat(point)
    os.statvfs(point)


class Mounts:
    """Watches the mounts. `ask(point)` returns when the file system answers, or raises OSError."""

    def __init__(
        self, machine: Machine, policy: InspectionPolicy, paths: Paths, ask: Callable[[str], None] = ask
    ) -> None:
        self._machine = machine
        self._named = tuple(os.path.normpath(point) for point in listed(policy.mounts))
        self._paths = paths
        self._limit_s = policy.mount_hang_s
        self._ask = ask
        self._known: dict[str, Mount] = {}
        self._out: dict[str, _Question] = {}

    def read(self) -> Reading:
        present = mount_table(self._machine)
        if present is None:
            return unreadable(f"there is no {self._machine.proc}/self/mountinfo: mount procfs")
        self._known |= {mount.point: mount for mount in present.values() if mount.is_remote}
        points = tuple(dict.fromkeys((*self._named, *self._known)))
        gone = [self._gone(point) for point in points if point not in present]
        watched = [point for point in points if point in present]
        if not points:
            return Reading(absent="no network file system is mounted; name mounts in [inspections] mounts")
        return Reading(
            troubles=(*gone, *self._hanging(watched)),
            seen={point: f"{present[point].kind} of {present[point].source} answers" for point in watched},
        )

    def _gone(self, point: str) -> Trouble:
        detail = f"nothing is mounted at {point}"
        shared = self._shared(point)
        if point in self._named:
            return Trouble(device=point, kind="gone", detail=detail, confidence="evict", shared=shared)
        # Unmounting may be intended, except where the node writes.
        is_needed = any(Path(point) in (path, *path.parents) for path in self._paths())
        return Trouble(
            device=point,
            kind="gone",
            detail=f"{detail}, before it was {self._known[point].source}",
            confidence="tolerate" if is_needed else "hint",
            shared=shared,
        )

    def _shared(self, point: str) -> str:
        return self._known[point].shared if point in self._known else ""

    def _hanging(self, points: list[str]) -> list[Trouble]:
        for point in points:
            if point not in self._out:
                self._out[point] = _Question(point, self._ask)
        deadline = time.monotonic() + self._limit_s
        troubles: list[Trouble] = []
        for point in points:
            question = self._out[point]
            if not question.answered.wait(max(0.0, deadline - time.monotonic())):
                waited_s = time.monotonic() - question.asked_at
                detail = f"{point} has not answered for {waited_s:.0f} s"
                troubles.append(Trouble(device=point, kind="hang", detail=detail, shared=self._shared(point)))
                continue
            del self._out[point]
            if question.error is not None:
                detail = f"{point} cannot be used: {question.error.strerror}"
                troubles.append(Trouble(device=point, kind="error", detail=detail, shared=self._shared(point)))
        return troubles


def mounts_check(policy: InspectionPolicy, machine: Machine, paths: Paths) -> Check:
    """Return the check of mounts; `paths` are checked beside network file systems."""
    return Check(
        name="mounts",
        source="/proc/self/mountinfo, statvfs",
        read=Mounts(machine, policy, paths).read,
        interval_s=policy.mounts_s,
        limit_s=policy.mount_hang_s + 10,
        confidence="tolerate",
        symptom=Symptom.FILESYSTEM_MOUNT,
    )
