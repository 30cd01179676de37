"""The storage contract for checkpoints, and the directory that implements it.

The storage knows bytes, steps and manifests; it knows nothing of tensors or collectives. A checkpoint engine in peer
memory takes the directory's place behind the same contract (TRANSOM, section 5: the training process never learns which
tier answered).

Layout of a directory::

    step-00000123/manifest.json     names, sizes and index checksums of every part, world size and mesh
    step-00000123/rank-00000.part   what rank 0 wrote
    generation-8.big.1763724000000/ where generation 8 of job "big" writes, in the run that began at that time;
                                    the ranks in step-00000124, the vaults of its nodes in vault-step-00000125
    step-00000120.damaged/          failed its checks: kept for the post-mortem, never read
    step-00000121.rolled-back/      newer than a rollback's target: kept, never read
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from holdfast.node.durable import sync_directory
from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.layout.manifest import (
    MANIFEST,
    CheckpointManifest,
    decode_part,
    encode_manifest,
)
from holdfast.trainer.checkpoint.storage.folder import (
    DirectoryFolder,
    Folder,
    FoundCheckpoint,
    StepState,
    whole_manifest,
)
from holdfast.trainer.checkpoint.storage.presence import HOLD_AGAIN_S
from holdfast.trainer.checkpoint.storage.retention import Retention, outdated
from holdfast.trainer.checkpoint.storage.workplace import NO_SPACE, UNFENCED, Owner, Workplace

__all__ = [
    "DirectoryStorage",
    "Storage",
    "decode_part",
    "newest_first",
    "sizes",
]

log = logging.getLogger("holdfast.trainer.checkpoint")

SET_ASIDE_MAX = 3
"""Checkpoints that are kept for the post-mortem: each is as large as any other."""

VAULT = "vault-"
"""Before the names of what vaults write: they and the ranks may write the same step at the same time."""

_PUBLISHED = re.compile(r"step-(\d{8,})")
_WRITTEN = re.compile(rf"({VAULT})?step-(\d{{8,}})")
_SET_ASIDE = re.compile(r"step-(\d{8,})\.(damaged|rolled-back)(-\d+)?")


class Storage(Protocol):
    """Storage as a checkpointer needs it.

    Every rank calls `write`, `read` and, when another rank has failed, `claim`; the other methods are for the rank that
    decides. Whatever changes the checkpoints raises Superseded once a newer generation has claimed them, and has then
    changed nothing that others see. Directories and object stores pass the same tests of this contract.
    """

    def claim(self) -> None:
        """Take the checkpoints over from older generations, before looking at them. Writing claims them too."""
        ...

    def write(self, step: int, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        """Keep a part, durable on return, invisible until published; return its size. Raises CheckpointError."""
        ...

    def publish(self, manifest: CheckpointManifest) -> str:
        """Make a step whose parts are all written visible at once, or not at all. Returns its location."""
        ...

    def discard(self, step: int) -> None:
        """Drop this generation's unpublished parts of a step: a full disk must not stay full of them."""
        ...

    def steps(self) -> list[int]:
        """Return the published steps, in any order."""
        ...

    def damaged(self) -> list[int]:
        """Return the steps set aside as damaged and still kept, in any order."""
        ...

    def manifest(self, step: int) -> CheckpointManifest:
        """Return the manifest of a published step. Raises DamagedCheckpoint unless every part is there in full size."""
        ...

    def read(self, step: int, name: str, offset: int, size: int) -> memoryview:
        """Read bytes of a published part into writable memory of the caller. Raises DamagedCheckpoint when short."""
        ...

    def set_aside(self, step: int, label: str) -> None:
        """Take a published step out of `steps` but keep it. The label is "damaged" or "rolled-back"."""
        ...

    def retain(self, retention: Retention) -> None:
        """Drop what is not to be kept, and what dead generations left unfinished."""
        ...

    def unpublished(self) -> list[int]:
        """Return the steps that this generation has begun to write and not published, in any order."""
        ...

    def staged(self, step: int) -> Folder:
        """Return the folder of an unpublished step. It may disappear at any time."""
        ...

    def survey(self) -> list[FoundCheckpoint]:
        """Return every complete or unfinished checkpoint in any order, for display: it claims and changes nothing."""
        ...


def sizes(storage: Storage, retention: Retention) -> dict[int, int]:
    """Return the bytes of every published step; 0 if the limit does not need them, or for a damaged step."""
    return {step: _size(storage, step) if retention.nbytes_max else 0 for step in storage.steps()}


def _size(storage: Storage, step: int) -> int:
    try:
        return storage.manifest(step).nbytes
    except CheckpointError:
        return 0


def newest_first(published: Iterable[int], at_most: int | None) -> list[int]:
    """Return the steps worth trying, best first. ``at_most`` is a rollback's target: nothing after it may come back."""
    return sorted((step for step in published if at_most is None or step <= at_most), reverse=True)


class DirectoryStorage:
    """Checkpoints in a directory that all nodes of the job share."""

    def __init__(self, root: str | os.PathLike[str], *, owner: Owner = UNFENCED, prefix: str = "") -> None:
        """`prefix`: `VAULT` for vaults, "" for ranks."""
        self.root = Path(root)
        self._owner = owner
        self._prefix = prefix
        self._workplace = Workplace(self.root, owner)
        self._is_held = False
        self._hold_at = float("-inf")

    def claim(self) -> None:
        if not self._owner.job:
            return
        try:
            self._workplace.claim()
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, *NO_SPACE):
                raise CheckpointError(f"{self.root} cannot be claimed: {error.strerror}; check the mount") from error
            log.warning("%s is only read, it cannot be written: %s", self.root, error.strerror)

    def hold(self) -> None:
        """Show other jobs that this one writes here, until the process ends; for the rank that decides.

        Raises DirectoryTaken if another one writes here, and CheckpointError like `claim`.
        """
        if self._is_held or time.monotonic() < self._hold_at:
            return
        try:
            self._workplace.hold()
        except OSError as error:
            # What is written next fails for the same reason, and its error counts.
            log.warning("other jobs do not see that this one writes to %s: %s", self.root, error.strerror)
            if error.errno in NO_SPACE:
                self._hold_at = time.monotonic() + HOLD_AGAIN_S
                return
        self._is_held = True

    def write(self, step: int, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        path = self._staging(step) / name
        try:
            with self._workplace.in_use():
                path.parent.mkdir(exist_ok=True)
                with open(path, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                    return file.tell()
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written: {error.strerror}; free space or repair the mount, "
                "older checkpoints are untouched"
            ) from error

    def publish(self, manifest: CheckpointManifest) -> str:
        staging, target = self._staging(manifest.step), self._published(manifest.step)
        with self._workplace.in_use():
            with open(staging / MANIFEST, "wb") as file:
                file.write(encode_manifest(manifest))
                file.flush()
                os.fsync(file.fileno())
            sync_directory(staging)
            self._workplace.publish(staging, target)
        self._remove_strays(target, manifest)
        return str(target)

    def _remove_strays(self, published: Path, manifest: CheckpointManifest) -> None:
        # Only after the publication: a writer that is killed before it must leave all that the next one publishes.
        try:
            for stray in {path.name for path in published.iterdir()} - {MANIFEST, *(it.name for it in manifest.parts)}:
                (published / stray).unlink()
        except OSError as error:
            log.warning("%s is published, what else lies there cannot be removed: %s", published, error)

    def discard(self, step: int) -> None:
        shutil.rmtree(self._staging(step), ignore_errors=True)

    def steps(self) -> list[int]:
        return [int(match[1]) for match in self._matches(_PUBLISHED)]

    def damaged(self) -> list[int]:
        return [int(match[1]) for match in self._matches(_SET_ASIDE) if match[2] == "damaged"]

    def manifest(self, step: int) -> CheckpointManifest:
        return whole_manifest(DirectoryFolder(self._published(step)))

    def read(self, step: int, name: str, offset: int, size: int) -> memoryview:
        return DirectoryFolder(self._published(step)).read(name, offset, size)

    def set_aside(self, step: int, label: str) -> None:
        source = self._published(step)
        with self._workplace.in_use():
            self._workplace.set_aside(source, f"{source.name}.{label}")

    def retain(self, retention: Retention) -> None:
        with self._workplace.in_use():
            for step in outdated(sizes(self, retention), retention):
                self._workplace.drop(self._published(step))
            set_aside = sorted(self._matches(_SET_ASIDE), key=lambda match: (int(match[1]), match[0]), reverse=True)
            for match in set_aside[SET_ASIDE_MAX:]:
                self._workplace.drop(self.root / match[0])
            self._workplace.sweep()

    def unpublished(self) -> list[int]:
        try:
            names = os.listdir(self._workplace.path)
        except FileNotFoundError:
            return []
        matches = [_WRITTEN.fullmatch(name) for name in names]
        return [int(match[2]) for match in matches if match and (match[1] or "") == self._prefix]

    def staged(self, step: int) -> Folder:
        return DirectoryFolder(self._staging(step))

    def survey(self) -> list[FoundCheckpoint]:
        published, set_aside = self._matches(_PUBLISHED), self._matches(_SET_ASIDE)
        unfinished = [path for path in self.root.glob("generation-*/*step-*") if _WRITTEN.fullmatch(path.name)]
        return [
            *(
                FoundCheckpoint(int(match[1]), StepState.COMPLETE, DirectoryFolder(self.root / match[0]))
                for match in published
            ),
            *(
                FoundCheckpoint(int(match[1]), StepState(match[2]), DirectoryFolder(self.root / match[0]))
                for match in set_aside
            ),
            *(FoundCheckpoint(_step_of(path), StepState.UNFINISHED, DirectoryFolder(path)) for path in unfinished),
        ]

    def _matches(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        if not self.root.is_dir():
            return []
        return [match for entry in os.scandir(self.root) if (match := pattern.fullmatch(entry.name))]

    def _published(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def _staging(self, step: int) -> Path:
        return self._workplace.path / f"{self._prefix}step-{step:08d}"


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
