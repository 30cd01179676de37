"""Notes of ranks in the job's directory for later generations."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "saved-steps"
NUMBERS_BEGIN_AGAIN = "printed-numbers-begin-again"
"""Name of a mark: the numbers that the script prints begin again while it trains."""
COUNTS_BEGIN_AGAIN = "counts-begin-again"
"""Name of a mark: what counts the script's steps, an optimizer or a framework, begins again while it trains."""


def note_folder() -> Path | None:
    """Return where ranks note what a later generation is to know of this one; None without a job."""
    directory = os.environ.get("HOLDFAST_JOB_DIR")
    return Path(directory) / FOLDER if directory else None


def mark(name: str) -> None:
    """Note that something has happened in this job."""
    if (folder := note_folder()) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def is_marked(name: str) -> bool:
    """Return True if it has happened in this job, or in one before it in the same directory."""
    folder = note_folder()
    return folder is not None and (folder / name).exists()
