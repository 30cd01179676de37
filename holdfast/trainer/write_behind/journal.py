"""The journal of a rank's saves on the disk: so that a save which is lost with the memory of its nodes is reported.

It has the last save only, for no rank is more than one save ahead of its disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.trainer.write_behind.saved_files import JournalEntry, decode_journal, encode_journal

log = logging.getLogger("holdfast.trainer.checkpoint")

FOLDER = "memory-checkpoints"


class Journal:
    def __init__(self, job_directory: Path, rank: int) -> None:
        self._path = job_directory / FOLDER / f"rank-{rank:05d}.json"
        self._entry: JournalEntry | None = None

    def open(self) -> JournalEntry | None:
        """Return the last entry; None if there is none, or it was torn by a power cut. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._entry = decode_journal(self._path.read_bytes())
        except FileNotFoundError:
            self._entry = None
        except UNREADABLE as error:
            # It only names what is lost. What memory has is compared with the disk without it.
            log.error("it is not known whether the last save was lost: %s is damaged (%s)", self._path, error)
            self._entry = None
        return self._entry

    def answered(self, entry: JournalEntry) -> None:
        """Note a save before the script goes on. Raises OSError."""
        part = self._path.with_suffix(".part")
        part.write_bytes(encode_journal(entry))
        os.replace(part, self._path)
        self._entry = entry

    def written(self) -> None:
        """Note that the last save has reached the disk. Raises OSError."""
        if self._entry is not None and not self._entry.is_written:
            self.answered(msgspec.structs.replace(self._entry, is_written=True))
