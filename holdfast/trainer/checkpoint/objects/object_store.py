"""Checkpoints in an object store, through fsspec: the same contract as a directory, without renames or locks.

Layout below the URL::

    catalogue/catalogue-000000000042.json                      the steps there are; the highest number counts
    generation-8.big.1763724000000/step-00000123.1/manifest.json
    generation-8.big.1763724000000/step-00000123.1/rank-00000.part

Each generation writes below a separate name. A step exists once the catalogue names the place of its objects, and the
catalogue is one object, created last. Nothing that counts is ever written to or moved.

The fence promises what it promises in a directory (`holdfast.trainer.checkpoint.storage.workplace`): once `claim` has
returned, no older generation publishes, replaces, drops or sets aside a step. It is weaker in one thing: what an older
generation was writing is not taken away from it. It may go on to write objects that count for nothing, until it finds
out at its next part or publication; retention removes them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from holdfast.trainer.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpoint,
    DirectoryTaken,
    Superseded,
    taken,
)
from holdfast.trainer.checkpoint.layout.manifest import MANIFEST, CheckpointManifest, encode_manifest
from holdfast.trainer.checkpoint.objects import catalogue
from holdfast.trainer.checkpoint.objects.journal import Journal
from holdfast.trainer.checkpoint.objects.object_presence import ObjectPresence
from holdfast.trainer.checkpoint.storage.directory import SET_ASIDE_MAX, sizes
from holdfast.trainer.checkpoint.storage.folder import Folder, FoundCheckpoint, StepState, whole_manifest
from holdfast.trainer.checkpoint.storage.presence import HOLD_AGAIN_S, words_of
from holdfast.trainer.checkpoint.storage.retention import Retention, outdated
from holdfast.trainer.checkpoint.storage.workplace import UNFENCED, Owner, owner_of

log = logging.getLogger("holdfast.trainer.checkpoint")

PIECE_BYTES = 32 << 20
"""Bytes held besides the state while a part is uploaded. S3 takes 10,000 pieces, so a part may have 312 GiB."""
READS_AT_ONCE = 8

_STEP = re.compile(r"(vault-)?step-(\d{8,})\.\d+")
# Not all that they raise is an OSError, and they are not imported where they are not used.
_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure"})


class ObjectStorage:
    """Checkpoints below a prefix of an object store that all nodes of the job reach."""

    def __init__(self, filesystem: Any, root: str, url: str, *, owner: Owner = UNFENCED, prefix: str = "") -> None:
        """`filesystem` is one of fsspec's, `root` the start of the checkpoints in its terms, `url` the same for people.
        `prefix` separates different kinds of writers of the same owner.
        """
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._url = url.rstrip("/")
        self._owner = owner
        self._prefix = prefix
        self._journal = Journal(filesystem, self._root, owner)
        self._has_looked = self._is_held = False
        self._hold_failed_at: float | None = None

    def claim(self) -> None:
        try:
            with self._explained("claimed"):
                self._claim()
        except CheckpointError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            log.warning("%s is only read, it cannot be written: %s", self._url, error.__cause__)

    def hold(self, *, is_needed: bool = False) -> None:
        """Take the checkpoints for this job until the process ends: other jobs that would write here are refused.

        Raises DirectoryTaken if another one writes here, and Superseded. Waits up to
        `object_presence.STALE_S` for a sign of life of one that another machine has begun. If the store fails, it is
        tried again after `HOLD_AGAIN_S`, and with `is_needed` at once, which raises its error.
        """
        is_early = self._hold_failed_at is not None and time.monotonic() < self._hold_failed_at + HOLD_AGAIN_S
        if not self._owner.job or self._is_held or (is_early and not is_needed):
            return
        shown = ObjectPresence(self._fs, self._root, self._owner)
        try:
            with self._explained("held"):
                self._hold(shown)
        except (DirectoryTaken, Superseded):
            shown.end()
            raise
        except CheckpointError as error:
            shown.end()
            self._hold_failed_at = time.monotonic()
            if is_needed:
                raise
            log.warning("other jobs do not see that this one writes to %s: %s", self._url, error)
            return
        self._is_held, self._hold_failed_at = True, None

    def _hold(self, shown: ObjectPresence) -> None:
        current = self._claim()
        shown.begin()
        while (before := current.other_writer(self._owner)) is not None or current.writer is None:
            if before is not None:
                self._refuse_if_lives(shown, before)
            # If another one has begun in this moment, it is the next to be looked at.
            current = self._journal.change(partial(catalogue.held, owner=self._owner, before=before))

    def write(self, step: int, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        with self._explained("written"):
            path = f"{self._root}/{self._next(self._claim(), step)}/{name}"
            size = 0
            with self._fs.open(path, "wb", block_size=PIECE_BYTES) as file:
                for piece in _pieces(chunks):
                    size += file.write(piece)
            return size

    def publish(self, manifest: CheckpointManifest) -> str:
        if self._hold_failed_at is not None:
            # Else a job that ended long ago would count as the one that writes here.
            self.hold(is_needed=True)
        with self._explained("published"):
            before = self._claim()
            location = self._next(before, manifest.step)
            self._fs.pipe_file(f"{self._root}/{location}/{MANIFEST}", encode_manifest(manifest))
            after = self._journal.change(
                lambda current: catalogue.published(current, manifest.step, location), is_writing=True
            )
        self._remove_replaced(set(before.locations()) - set(after.locations()), location, manifest)
        return f"{self._url}/{location}"

    def _remove_replaced(self, replaced: set[str], location: str, manifest: CheckpointManifest) -> None:
        # Only now: who is killed before it is published leaves all that the next one needs to do it.
        try:
            with self._explained("removed"):
                self._remove(replaced)
                for stray in self._folder(location).sizes().keys() - {MANIFEST, *(it.name for it in manifest.parts)}:
                    self._fs.rm_file(f"{self._root}/{location}/{stray}")
        except CheckpointError as error:
            log.warning("step %d is published, what it replaces cannot be removed: %s", manifest.step, error)

    def discard(self, step: int) -> None:
        try:
            with self._explained("removed"):
                self._remove({self._next(self._journal.newest(), step)})
        except CheckpointError as error:
            log.warning("what was written of step %d stays until retention: %s", step, error)

    def steps(self) -> list[int]:
        return list(self._newest().steps)

    def damaged(self) -> list[int]:
        return [aside.step for aside in self._newest().set_aside if aside.label == "damaged"]

    def manifest(self, step: int) -> CheckpointManifest:
        return whole_manifest(self._published(step))

    def read(self, step: int, name: str, offset: int, size: int) -> memoryview:
        return self._published(step).read(name, offset, size)

    def set_aside(self, step: int, label: str) -> None:
        self.hold()
        with self._explained("set aside"):
            self._claim()
            self._journal.change(lambda current: catalogue.moved_aside(current, step, label), is_writing=True)

    def retain(self, retention: Retention) -> None:
        old = outdated(sizes(self, retention), retention)
        with self._explained("removed"):
            before = self._claim()
            after = self._journal.change(
                lambda current: catalogue.retained(current, old, SET_ASIDE_MAX), is_writing=True
            )
            abandoned = {
                location
                for owner, location in self._locations()
                if owner.precedes(self._owner) and location not in set(after.locations())
            }
            self._remove(abandoned | set(before.locations()) - set(after.locations()))
            self._journal.prune()

    def unpublished(self) -> list[int]:
        newest = self._newest()
        with self._explained("listed"):
            names = self._names(f"{self._root}/{self._owner.name}")
        matches = [match for match in map(_STEP.fullmatch, names) if match and (match[1] or "") == self._prefix]
        return [
            step for match in matches if f"{self._owner.name}/{match[0]}" == self._next(newest, step := int(match[2]))
        ]

    def staged(self, step: int) -> Folder:
        return self._folder(self._next(self._newest(), step))

    def survey(self) -> list[FoundCheckpoint]:
        newest = self._newest()
        with self._explained("listed"):
            unfinished = [location for _, location in self._locations() if location not in set(newest.locations())]
        return [
            *(
                FoundCheckpoint(step, StepState.COMPLETE, self._folder(location))
                for step, location in newest.steps.items()
            ),
            *(FoundCheckpoint(it.step, StepState(it.label), self._folder(it.location)) for it in newest.set_aside),
            *(
                FoundCheckpoint(_step_of(location), StepState.UNFINISHED, self._folder(location))
                for location in unfinished
            ),
        ]

    def _next(self, current: catalogue.Catalogue, step: int) -> str:
        return catalogue.next_location(current, self._owner, step, self._prefix)

    def _claim(self) -> catalogue.Catalogue:
        """Return the newest catalogue, which is this owner's to change."""
        if not self._has_looked:
            self._refuse_if_older_lives()
            self._has_looked = True
        return self._journal.change(lambda current: catalogue.claimed(current, self._owner))

    def _refuse_if_older_lives(self) -> None:
        """Raise DirectoryTaken if an earlier submission of this name writes here: a claim would end it."""
        before = self._journal.newest().other_writer(self._owner)
        if before is not None and before.job == self._owner.job and before.submitted_ms < self._owner.submitted_ms:
            shown = ObjectPresence(self._fs, self._root, self._owner)
            shown.write()
            self._refuse_if_lives(shown, before)

    def _refuse_if_lives(self, shown: ObjectPresence, other: Owner) -> None:
        if (writer := shown.living(other)) is not None:
            raise taken(self._url, other.job, words_of(writer))

    def _newest(self) -> catalogue.Catalogue:
        with self._explained("read"):
            return self._journal.newest()

    def _published(self, step: int) -> ObjectFolder:
        location = self._newest().steps.get(step)
        if location is None:
            raise CheckpointError(f"{self._url} has no step {step} any more")
        return self._folder(location)

    def _folder(self, location: str) -> ObjectFolder:
        return ObjectFolder(self._fs, f"{self._root}/{location}", f"{self._url}/{location}")

    def _locations(self) -> Iterator[tuple[Owner, str]]:
        """Return the locations with objects of a step, in the catalogue or not."""
        for workplace in self._names(self._root):
            owner = owner_of(workplace)
            for name in self._names(f"{self._root}/{workplace}") if owner is not None else ():
                if owner is not None and _STEP.fullmatch(name):
                    yield owner, f"{workplace}/{name}"

    def _names(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return [name.rstrip("/").rpartition("/")[2] for name in self._fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []

    def _remove(self, locations: Iterable[str]) -> None:
        for location in locations:
            try:
                self._fs.rm(f"{self._root}/{location}", recursive=True)
            except FileNotFoundError:
                continue

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        with _explained(f"{self._url} cannot be {what}"):
            yield


class ObjectFolder:
    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._fs = filesystem
        self._path = path
        self._url = url

    @property
    def name(self) -> str:
        return self._url

    def sizes(self) -> dict[str, int]:
        self._fs.invalidate_cache()
        try:
            with _explained(f"{self._url} cannot be listed"):
                listed = self._fs.ls(self._path, detail=True)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return {}
            raise
        return {entry["name"].rpartition("/")[2]: entry["size"] for entry in listed if entry["type"] == "file"}

    def modified_at(self) -> float | None:
        try:
            listed = self._fs.ls(self._path, detail=True)
        except OSError:
            return None
        moments = [entry[name] for entry in listed for name in ("LastModified", "created", "mtime") if name in entry]
        stamps = [moment.timestamp() if isinstance(moment, datetime) else moment for moment in moments]
        return max((stamp for stamp in stamps if isinstance(stamp, int | float)), default=None)

    def get(self, name: str) -> bytes:
        try:
            with _explained(f"{self._url}/{name} cannot be read"):
                content: bytes = self._fs.cat_file(f"{self._path}/{name}")
                return content
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DamagedCheckpoint(f"{self._url}: {name} is missing") from error
            raise

    def read(self, name: str, offset: int, size: int) -> memoryview:
        target = np.empty(size, np.uint8).data
        starts = list(range(0, size, PIECE_BYTES))
        for first in range(0, len(starts), READS_AT_ONCE):
            self._read_pieces(name, offset, starts[first : first + READS_AT_ONCE], target)
        return target

    def _read_pieces(self, name: str, offset: int, starts: list[int], target: memoryview) -> None:
        path = f"{self._path}/{name}"
        ends = [min(start + PIECE_BYTES, target.nbytes) for start in starts]
        with _explained(f"{self._url}/{name} cannot be read"):
            pieces = self._fs.cat_ranges(
                [path] * len(starts), [offset + start for start in starts], [offset + end for end in ends]
            )
        for start, end, piece in zip(starts, ends, pieces, strict=True):
            if isinstance(piece, Exception) or len(piece) < end - start:
                there = self.sizes().get(name, 0)
                if there < offset + end:
                    raise DamagedCheckpoint(
                        f"{self._url}/{name}: ends after {there} bytes, {offset + target.nbytes} are needed"
                    )
                raise CheckpointError(f"{self._url}/{name} cannot be read: {piece!r}; check the store")
            target[start:end] = piece


def _pieces(chunks: Iterable[memoryview | bytes]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CheckpointError(f"{what}: {cause}; check the address and the credentials") from error


def _step_of(location: str) -> int:
    match = _STEP.fullmatch(location.rpartition("/")[2])
    assert match is not None
    return int(match[2])
