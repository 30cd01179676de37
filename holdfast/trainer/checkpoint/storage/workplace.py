"""Keeps an older generation of a job from changing the checkpoints of a newer one.

A node that is cut off lets its ranks train. If they need no other node they go on, and save, beside the generation that
has taken their place. Asking "am I still the newest?" before a rename is not enough: the answer may be out of date when
the rename is done, and a lock may be lost by a node that does not know it.

So each generation has a separate directory below the root, its workplace, and whatever it does to a step that others
can see is one rename out of its workplace (publish) or into it (drop, set aside). A newer generation first makes
its own workplace, then removes those of its predecessors, and only then looks at the steps. From that moment the
renames of the older one fail by themselves, whenever they come. A rank of an older generation that makes its workplace
late sees the newer one and removes its own; the newest workplace is never removed.

Guaranteed, once `claim` has returned: no older generation of this job publishes, replaces, drops or sets aside a step.
What one published before that is a checkpoint like any other; what it had not finished is gone, but for steps that were
being set aside or replaced: they come back to the root first, or a job whose only step is damaged would not know that
it had one.

Different jobs, and submissions of one name in two clusters, are kept apart by `presence`: the first that writes has the
directory for as long as it lives, and others are refused. Once it is gone, the next one takes its workplace away.

Not guaranteed: anything on a medium where a rename is a copy (object stores mounted as directories), or where a node
may for long not see what another has made.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from holdfast.node.durable import sync_directory
from holdfast.trainer.checkpoint.errors import CheckpointError, DirectoryTaken, Superseded, taken
from holdfast.trainer.checkpoint.storage import presence
from holdfast.trainer.checkpoint.storage.presence import Life, Presence

REMOVALS_MAX = 100
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_WORKPLACE = re.compile(r"(?:revoked-[0-9a-f]+\.)?(generation-(\d+)(?:\.([A-Za-z0-9-]+)\.(\d+))?)")
_ASIDE = "aside-"
_REPLACED = "replaced-"


class Owner(NamedTuple):
    """A writer: a generation of one submission of a job. Without a job nothing is fenced, since outside of Holdfast the
    count of restarts may begin at 0 again.
    """

    job: str = ""
    submitted_ms: int = 0
    generation: int = 0

    @property
    def name(self) -> str:
        return f"generation-{self.generation}" + (f".{self.job}.{self.submitted_ms}" if self.job else "")

    def precedes(self, other: Owner) -> bool:
        return self.job == other.job and self[1:] < other[1:]

    def is_of_run(self, other: Owner) -> bool:
        """Return True if both are generations of one submission."""
        return self[:2] == other[:2]


class Workplace:
    """One owner's directory below a root that all nodes share."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self._root = root
        self._owner = owner
        self._is_claimed = False
        self._presence: Presence | None = None
        self.path = root / owner.name

    def claim(self) -> None:
        """Take the root over from all predecessors; a second call only checks that no newer owner has done so.

        Raises Superseded if a newer generation is there, DirectoryTaken if an earlier submission of this name writes,
        and OSError. Without space for the workplace (`NO_SPACE`) the predecessors are out all the same.
        """
        self._refuse_if_superseded()
        if self._is_claimed:
            return
        if self._owner.job:
            self._refuse_if_lives([owner for owner in self._strangers() if owner.precedes(self._owner)])
        missing = [each for each in (self._root, *self._root.parents) if not each.exists()]
        try:
            self._make()
        except OSError as error:
            if error.errno not in NO_SPACE or not self._owner.job:
                raise
            # What predecessors had begun takes space, and needs none to be published.
            self.sweep()
            self._make()
        for each in missing:
            # A directory is durable when its name in the one above is.
            sync_directory(each.parent)
        try:
            self._refuse_if_superseded()
        except Superseded:
            with suppress(OSError):
                self.path.rmdir()
            raise
        if self._owner.job:
            self.sweep()
        self._is_claimed = True

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        sync_directory(self._root)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Claim the workplace for a block that changes the checkpoints.

        Raises DirectoryTaken if another job writes here, and Superseded if the block fails because a newer generation
        has the checkpoints.
        """
        self.claim()
        self._refuse_if_taken()
        try:
            yield
        except OSError:
            self._refuse_if_superseded()
            self._refuse_if_taken()
            raise

    def hold(self) -> None:
        """Take the root for this job until the process ends: other jobs that would write here are refused.

        Raises DirectoryTaken if another one writes here. Waits up to `presence.STALE_S` for a sign of life of one that
        another machine has begun.
        """
        if not self._owner.job or self._presence is not None:
            return
        self.claim()
        strangers = self._strangers()
        self._refuse_if_lives(strangers)
        self._take_away({owner for owner in strangers if presence.seen_in(self._root / owner.name)}.__contains__)
        shown = Presence(self.path)
        shown.begin()
        try:
            self._refuse_if_taken()  # Two may begin at once.
        except DirectoryTaken:
            shown.end()
            raise
        self._presence = shown

    def publish(self, staging: Path, target: Path) -> None:
        """Rename a directory of the workplace to one of the root, durably. One that it replaces stays here until then,
        so that a later claim finds either.
        """
        replaced = self.path / f"{_REPLACED}{target.name}"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(target, replaced)
        os.rename(staging, target)
        sync_directory(self._root)
        shutil.rmtree(replaced, ignore_errors=True)

    def drop(self, directory: Path) -> None:
        """Remove a directory of the root, at once for all who look."""
        doomed = self.path / f"dropped-{uuid4().hex}"
        os.rename(directory, doomed)
        shutil.rmtree(doomed)

    def set_aside(self, directory: Path, name: str) -> None:
        """Rename a directory of the root to `name`, with a number appended if that is taken."""
        if not self._owner.job:
            os.rename(directory, self._free(name))
            sync_directory(self._root)
            return
        # Through the workplace, so that it fails once a newer generation is there, which may be reading this step.
        on_the_way = self.path / f"{_ASIDE}{name}"
        os.rename(directory, on_the_way)
        os.rename(on_the_way, self._free(name))
        sync_directory(self._root)

    def sweep(self) -> None:
        """Revoke the workplaces of all predecessors, and remove those that were revoked.

        Raises CheckpointError if one cannot be, so an older generation may still change what is here.
        """
        self._take_away(lambda owner: owner.precedes(self._owner))

    def _take_away(self, is_meant: Callable[[Owner], bool]) -> None:
        try:
            for owner, workplace in self._workplaces():
                if is_meant(owner):
                    self._rename(workplace)
            for owner, workplace in self._workplaces():
                if is_meant(owner):
                    self._empty(workplace)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename} cannot be removed ({error.strerror}), so an older generation may still change the "
                "checkpoints; remove it, or run as the user whose it is"
            ) from error

    def _refuse_if_superseded(self) -> None:
        if not self._owner.job:
            return
        if newer := [owner for owner, path in self._workplaces() if self._owner.precedes(owner) and _is_in_force(path)]:
            raise Superseded(
                f"generation {max(newer).generation} of job {self._owner.job} has taken the checkpoints over from "
                f"generation {self._owner.generation}, which this rank belongs to, and nothing was changed; if the "
                f"controller's database was restored to an earlier state since, remove {self._root / max(newer).name}"
            )

    def _refuse_if_taken(self) -> None:
        """Raise DirectoryTaken if another job may be writing here."""
        for owner in self._strangers():
            seen = presence.seen_in(self._root / owner.name)
            if seen is not None and presence.life_of(seen, self._now_ns) is not Life.GONE:
                raise self._taken(owner, seen.words)

    def _refuse_if_lives(self, others: Sequence[Owner]) -> None:
        """Raise DirectoryTaken if one of the owners lives, which may take `presence.STALE_S` to find out."""
        for owner in others:
            if seen := presence.living(self._root / owner.name, self._now_ns):
                raise self._taken(owner, seen.words)

    def _taken(self, owner: Owner, process: str) -> DirectoryTaken:
        return taken(self._root, owner.job, process)

    def _strangers(self) -> list[Owner]:
        """Return the owners here that are no generation of this submission, and were not revoked."""
        if not self._owner.job:
            return []
        found = [owner for owner, path in self._workplaces() if _is_in_force(path)]
        return [owner for owner in found if owner.job and not owner.is_of_run(self._owner)]

    def _now_ns(self) -> int:
        """Return the time that the file system gives to what is changed now."""
        with tempfile.TemporaryFile(dir=self._root) as file:
            return os.fstat(file.fileno()).st_mtime_ns

    # A rename stops processes that use the path. Clients of network file systems remember the directory itself: only
    # its removal stops those. Other ranks of this generation do the same meanwhile, so anything may be gone already.

    def _rename(self, workplace: Path) -> None:
        if _is_in_force(workplace):
            with suppress(FileNotFoundError):
                os.rename(workplace, self._root / f"revoked-{uuid4().hex}.{workplace.name}")

    def _empty(self, workplace: Path) -> None:
        if _is_in_force(workplace):
            return  # Made since by a late rank, which will remove it.
        for _ in range(REMOVALS_MAX):
            self._bring_back(workplace)
            shutil.rmtree(workplace, ignore_errors=True)
            if not workplace.exists():
                return
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(workplace))

    def _bring_back(self, workplace: Path) -> None:
        """Finish what the previous owner began when it set a step aside, undo what it began when it replaced one."""
        strays: list[str] = []
        with suppress(FileNotFoundError):
            strays = [name for name in os.listdir(workplace) if name.startswith((_ASIDE, _REPLACED))]
        for stray in strays:
            with suppress(FileNotFoundError):
                if stray.startswith(_ASIDE):
                    os.rename(workplace / stray, self._free(stray.removeprefix(_ASIDE)))
                elif not (target := self._root / stray.removeprefix(_REPLACED)).exists():
                    os.rename(workplace / stray, target)
        if strays:
            sync_directory(self._root)

    def _free(self, name: str) -> Path:
        numbered = (self._root / f"{name}-{number}" for number in itertools.count(2))
        return next(path for path in itertools.chain([self._root / name], numbered) if not path.exists())

    def _workplaces(self) -> list[tuple[Owner, Path]]:
        """Return the owners of the workplaces here, including those revoked and not removed yet."""
        if not self._root.is_dir():
            return []
        named = [(owner_of(entry.name), entry.name) for entry in os.scandir(self._root)]
        return [(owner, self._root / name) for owner, name in named if owner is not None]


UNFENCED = Owner()


def owner_of(workplace: str) -> Owner | None:
    """Return the owner of a workplace of this name; None if it is no such name."""
    match = _WORKPLACE.fullmatch(workplace)
    return Owner(match[3] or "", int(match[4] or 0), int(match[2])) if match else None


def _is_in_force(workplace: Path) -> bool:
    """Return True if it is still its owner's: a revoked one has another name."""
    return workplace.name.startswith("generation-")
