"""Saves that a job's ranks were answered from memory, and whose files never came: the job ended before.

The journals are the author's, and this command often root's: any of them may be a pipe, a link, or nonsense.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from holdfast.cli.output.tables import printable
from holdfast.decoding import UNREADABLE
from holdfast.node.ranks_file import open_ranks_file
from holdfast.trainer.write_behind.disk_state import state_of
from holdfast.trainer.write_behind.journal import FOLDER
from holdfast.trainer.write_behind.saved_files import decode_journal, lost_paths

FILES_MAX = 100
"""Lines that are yielded; a person reads no more."""
JOURNAL_BYTES_MAX = 4 << 20


def lost_saves(job_directory: Path) -> Iterator[str]:
    """Yield a line for each file, fit for a terminal; none if the directory cannot be read from here."""
    found = _lost(job_directory)
    yield from islice(found, FILES_MAX)
    if next(found, None) is not None:
        yield f"more than {FILES_MAX} saves are lost"


def _lost(job_directory: Path) -> Iterator[str]:
    try:
        journals = sorted((job_directory / FOLDER).glob("rank-*.json"))
    except OSError:
        return
    for path in journals:
        try:
            entry = decode_journal(_content(path))
            lost = [] if entry.is_written else lost_paths(entry.files, {it: state_of(it) for it in entry.files})
            at = datetime.fromtimestamp(entry.saved_at_ns / 1e9, UTC)
        except (OSError, OverflowError, *UNREADABLE):
            continue
        for file in lost:
            there = "the one before it is there" if entry.files[file] is not None else "there is none before it"
            saved = f"{printable(file)} as saved at {at:%Y-%m-%d %H:%M:%S} UTC"
            yield f"{saved} is lost, the job ended before it was written; {there}"


def _content(path: Path) -> bytes:
    with os.fdopen(open_ranks_file(path), "rb") as file:
        return file.read(JOURNAL_BYTES_MAX)
