"""The step at which each of the script's files was saved, for files that do not say it: a snapshot with its epoch only.

Notes lie in the job's directory. A file is known by its inode and its time, which outlive the renaming that follows a
careful save, and are the same on all nodes that share the file system.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.trainer.phases import binding
from holdfast.trainer.steps.guard import harmless

FOLDER = "saved-steps"
NOTES_MAX = 64
"""Saves that each rank remembers."""

TIME_ERROR_NS = 10 * 10**9
"""Time from the end of a save until its file is closed."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    inode: int
    modified_ns: int
    done: int
    """Number of steps that the job had completed."""


_notes: deque[_Note] = deque(maxlen=NOTES_MAX)


def patch_torch_save(torch: ModuleType) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        original(obj, f, *args, **kwargs)
        _note_saved(f)

    torch.save = torch.serialization.save = save  # type: ignore[attr-defined]


def step_of(path: Path) -> int | None:
    """Return how many steps the job had completed when it saved a file; None if that is not known."""
    folder = _folder()
    try:
        about = path.stat()
        files = [] if folder is None else sorted(folder.glob("rank-*.json"))
        notes = [note for file in files for note in msgspec.json.decode(file.read_bytes(), type=list[_Note])]
    except (OSError, msgspec.DecodeError):
        return None
    # A file that replaces another may have the inode of the one before.
    errors_ns = {abs(note.modified_ns - about.st_mtime_ns): note.done for note in notes if note.inode == about.st_ino}
    nearest_ns = min(errors_ns, default=TIME_ERROR_NS)
    return errors_ns[nearest_ns] if nearest_ns < TIME_ERROR_NS else None


@harmless
def _note_saved(place: Any) -> None:
    done, folder = binding.steps_completed(), _folder()
    # What is saved before the first step is no progress.
    if not done or folder is None:
        return
    try:
        about = os.stat(place if isinstance(place, str | os.PathLike) else place.fileno())
    except (AttributeError, OSError):
        # It is no file of this machine.
        return
    own = folder / f"rank-{int(os.environ['RANK']):05d}.json"
    if not _notes and own.exists():
        _notes.extend(msgspec.json.decode(own.read_bytes(), type=list[_Note]))
    _notes.append(_Note(inode=about.st_ino, modified_ns=about.st_mtime_ns, done=done))
    folder.mkdir(parents=True, exist_ok=True)
    part = own.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(list(_notes)))
    part.replace(own)


def _folder() -> Path | None:
    directory = os.environ.get("HOLDFAST_JOB_DIR")
    return Path(directory) / FOLDER if directory else None
