"""Keeps an older generation of a job from changing the checkpoints of a newer one.

A node that is cut off lets its ranks train. If they need no other node they go on, and save, beside the generation that
has taken their place. Asking "am I still the newest?" before a rename is not enough: the answer may be out of date when
the rename is done, and a lock may be lost by a node that does not know it.

So each generation has a directory of its own below the root, its workplace, and whatever it does to a step that
others can see is one rename out of its workplace (publish) or into it (drop, set aside). A newer generation first makes
its own workplace, then removes those of its predecessors, and only then looks at the steps. From that moment the
renames of the older one fail by themselves, whenever they come. A rank of an older generation that comes late sees the
newer workplace and gives its own back; the newest workplace is never removed.

Guaranteed, once `claim` has returned: no older generation of this job publishes, replaces, drops or sets aside a step.
What one published before that is a checkpoint like any other; what it had not finished is gone. A process killed
between the two renames of setting a step aside, or of replacing one, loses that step.

Not guaranteed: anything on a medium where a rename is a copy (object stores mounted as directories), or where a node
may for long not see what another has made. Different jobs in one directory are not kept apart.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from holdfast.trainer.checkpoint_errors import CheckpointError, Superseded

REMOVALS_MAX = 100

_WORKPLACE = re.compile(r"generation-(\d+)(?:\.([A-Za-z0-9-]+)\.(\d+))?")
_REVOKED = "revoked-"


class Owner(NamedTuple):
    """Who writes: a generation of one submission of a job.

    Without a job nothing is fenced, for outside of Holdfast the count of restarts may begin at 0 again.
    """

    job: str = ""
    submitted_ms: int = 0
    generation: int = 0

    def precedes(self, other: Owner) -> bool:
        """Whether `other` has taken this one's place."""
        return self.job == other.job and self[1:] < other[1:]


class Workplace:
    """One owner's directory below a root that all nodes share."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self._root = root
        self._owner = owner
        self._is_claimed = False
        self.path = root / _name(owner)

    def claim(self) -> None:
        """Take the root over from all predecessors; asked again, make sure that nobody else has.

        Raises:
            Superseded: a newer generation is there.
        """
        self._refuse_if_superseded()
        if self._is_claimed:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        sync_directory(self._root)
        try:
            self._refuse_if_superseded()
        except Superseded:
            with suppress(OSError):
                self.path.rmdir()
            raise
        self._is_claimed = True
        if self._owner.job:
            self._revoke_predecessors()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """What is done inside fails as `Superseded` if it fails because the workplace was taken away."""
        self.claim()
        try:
            yield
        except OSError:
            self._refuse_if_superseded()
            raise

    def drop(self, directory: Path) -> None:
        """Remove a directory of the root, at once for all who look."""
        doomed = self.path / f"dropped-{uuid4().hex}"
        os.rename(directory, doomed)
        shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Remove what dead generations left behind."""
        self._revoke_predecessors()
        for entry in list(os.scandir(self._root)):
            if entry.name.startswith(_REVOKED):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _refuse_if_superseded(self) -> None:
        if not self._owner.job:
            return
        if newer := [owner for owner in self._owners() if self._owner.precedes(owner)]:
            raise Superseded(
                f"generation {max(newer).generation} of job {self._owner.job} has taken the checkpoints over from "
                f"generation {self._owner.generation}, which this rank belongs to, and nothing was changed; if that "
                f"is a mistake, remove {self._root / _name(max(newer))}"
            )

    def _revoke_predecessors(self) -> None:
        for owner in self._owners():
            if owner.precedes(self._owner):
                self._revoke(self._root / _name(owner))

    def _revoke(self, workplace: Path) -> None:
        doomed = self._root / f"{_REVOKED}{uuid4().hex}"
        try:
            os.rename(workplace, doomed)
        except FileNotFoundError:
            return  # another rank of this generation was faster
        # Renamed, for those who go by the path; emptied and removed, for clients that remember the directory itself.
        for _ in range(REMOVALS_MAX):
            shutil.rmtree(doomed, ignore_errors=True)
            if not doomed.exists():
                return
        raise CheckpointError(f"{doomed} cannot be removed: an older generation may still write to it; remove it")

    def _owners(self) -> list[Owner]:
        if not self._root.is_dir():
            return []
        matches = [_WORKPLACE.fullmatch(entry.name) for entry in os.scandir(self._root)]
        return [Owner(match[2] or "", int(match[3] or 0), int(match[1])) for match in matches if match]


UNFENCED = Owner()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(owner: Owner) -> str:
    return f"generation-{owner.generation}" + (f".{owner.job}.{owner.submitted_ms}" if owner.job else "")
