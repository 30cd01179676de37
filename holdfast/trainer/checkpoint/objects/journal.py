"""The journal by which one of many writers changes a catalogue in an object store, and no replaced writer does.

The catalogues are numbered objects; the one with the highest number counts. A change is the next number, made with
"create only if there is none", which object stores do atomically. So of two who change the same catalogue one fails,
looks again, and finds what the other has done: that it was replaced, for example. There is no moment between asking
"am I still the newest?" and acting on the answer.

This rests on two properties of the store: a listing shows every object whose creation has returned (S3, Google Cloud
Storage and Azure promise it), and a conditional creation fails where there is an object. Not every store that speaks
the protocol of S3 keeps the second, so who takes the checkpoints over tries it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, Superseded, taken
from holdfast.trainer.checkpoint.objects.catalogue import FORMAT, Catalogue
from holdfast.trainer.checkpoint.storage.workplace import Owner

KEPT = 64
"""Older catalogues are removed. A writer that was frozen until its next number is free again changes nothing:
that number is not the highest, and after every change the writer looks whether it counts."""

ATTEMPTS_MAX = 1000

_NUMBERED = re.compile(r"catalogue-(\d{12})\.json")
_decode = msgspec.json.Decoder(Catalogue).decode


class Journal:
    """The catalogues below one root of a filesystem of fsspec."""

    def __init__(self, filesystem: Any, root: str, owner: Owner) -> None:
        self._fs = filesystem
        self._root = root
        self._owner = owner
        self._is_tried = False

    def newest(self) -> Catalogue:
        """Return the catalogue that counts. OSErrors of the store come through."""
        return self._newest()[1]

    def change(self, change: Callable[[Catalogue], Catalogue], *, is_writing: bool = False) -> Catalogue:
        """Apply `change` to the newest catalogue, if it makes a difference, and return the newest catalogue after it.

        Raises Superseded if a newer generation has claimed the checkpoints, and with `is_writing` DirectoryTaken if
        another job has them.
        """
        for _ in range(ATTEMPTS_MAX):
            number, current = self._newest()
            self.refuse_if_superseded(current)
            if is_writing and (other := current.other_writer(self._owner)):
                raise taken(self._root, other.job)
            wanted = change(current)
            if wanted == current:
                return current
            # The next round shows whether it took effect: an answer may be lost, and a number may be an old one.
            self._create(number + 1, wanted)
        raise CheckpointError(f"{self._root} changes all the time: does another job keep its checkpoints there?")

    def refuse_if_superseded(self, catalogue: Catalogue) -> None:
        if newer := catalogue.successor_of(self._owner):
            raise Superseded(
                f"generation {newer.generation} of job {self._owner.job} has taken the checkpoints over from "
                f"generation {self._owner.generation}, which this rank belongs to, and nothing was changed; if the "
                "controller's database was restored to an earlier state since, name another place for the checkpoints"
            )

    def prune(self) -> None:
        numbers = self._numbers()
        for number in sorted(numbers)[:-KEPT]:
            self._fs.rm_file(self._path(number))

    def _newest(self) -> tuple[int, Catalogue]:
        for _ in range(ATTEMPTS_MAX):
            number = max(self._numbers(), default=0)
            if not number:
                return 0, Catalogue()
            # Not there any more: so far behind that it has been removed.
            with suppress(FileNotFoundError):
                return number, self._decoded(number)
        raise CheckpointError(f"the catalogues in {self._root} are listed and not there; check the store")

    def _decoded(self, number: int) -> Catalogue:
        path = self._path(number)
        try:
            catalogue = _decode(self._fs.cat_file(path))
        except UNREADABLE as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}; remove it to go back to the catalogue before it"
            ) from error
        if catalogue.format != FORMAT:
            raise CheckpointMismatch(
                f"{path} has format {catalogue.format}, this Holdfast reads {FORMAT}: restore with the version that "
                "wrote it, or name another place for the checkpoints"
            )
        return catalogue

    def _numbers(self) -> list[int]:
        # Clients remember listings; an old one is a catalogue that does not count any more.
        self._fs.invalidate_cache()
        try:
            names = self._fs.ls(f"{self._root}/catalogue", detail=False)
        except FileNotFoundError:
            return []
        matches = [_NUMBERED.fullmatch(name.rpartition("/")[2]) for name in names]
        return [int(match[1]) for match in matches if match]

    def _create(self, number: int, catalogue: Catalogue) -> None:
        record = msgspec.json.encode(catalogue)
        if self._put(number, record) and not self._is_tried:
            if self._put(number, record):
                raise CheckpointError(
                    f"the store of {self._root} overwrites an object where it is asked to create one only if there is "
                    "none, so an older generation could change the checkpoints; use a store that honours If-None-Match"
                )
            self._is_tried = True

    def _put(self, number: int, record: bytes) -> bool:
        path = self._path(number)
        try:
            self._fs.pipe_file(path, record, mode="create")
        except OSError:
            # Stores differ in the error for an object that exists.
            self._fs.invalidate_cache()
            if self._fs.exists(path):
                return False
            raise
        return True

    def _path(self, number: int) -> str:
        return f"{self._root}/catalogue/catalogue-{number:012d}.json"
