"""Saves that a job's ranks were answered from memory, and whose files never came: the job ended before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.trainer.write_behind.disk_state import state_of
from holdfast.trainer.write_behind.journal import FOLDER
from holdfast.trainer.write_behind.saved_files import decode_journal, lost_paths


def lost_saves(job_directory: Path) -> Iterator[str]:
    """Yield a line for each file; none if the directory cannot be read from here."""
    try:
        journals = sorted((job_directory / FOLDER).glob("rank-*.json"))
    except OSError:
        return
    for path in journals:
        try:
            entry = decode_journal(path.read_bytes())
            lost = [] if entry.is_written else lost_paths(entry.files, {it: state_of(it) for it in entry.files})
        except (OSError, msgspec.DecodeError):
            continue
        at = datetime.fromtimestamp(entry.saved_at_ns / 1e9, UTC)
        for file in lost:
            there = "the one before it is there" if entry.files[file] is not None else "there is none before it"
            yield f"{file} as saved at {at:%Y-%m-%d %H:%M:%S} UTC is lost, the job ended before it was written; {there}"
