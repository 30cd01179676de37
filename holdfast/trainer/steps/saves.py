"""The step at which each of the script's files was saved, for files that do not contain it (a snapshot with its epoch
only) or whose number counts something else.

Notes lie in the job's directory, a file for each rank and a line for each save. A saved file is known by its inode and
its time, which outlive the renaming that follows a careful save, and are the same on all nodes that share the file
system.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.trainer.phases import binding
from holdfast.trainer.steps import optimizer_steps
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.notes import COUNTS_BEGIN_AGAIN, mark, note_folder
from holdfast.trainer.steps.step_start import LATE_STEPS_MAX, Saved

NOTES_BYTES_MAX = 16_384
"""A rank's notes that are longer are set aside, in place of those before: it remembers 100 saves or more."""

TIME_ERROR_NS = 10 * 10**9
"""Time from the end of a save until its file is closed."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    inode: int
    modified_ns: int
    done: int
    """Number of steps that the job had completed."""
    own_count: int | None = None
    """Number of steps that its optimizer had counted by itself; None if it keeps no count."""
    weights: str | None = None
    """A digest of the weights that the optimizer had reached."""


_decoder = msgspec.json.Decoder(_Note)


def patch_torch_save(torch: ModuleType) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        # In another thread, training goes on meanwhile.
        done = binding.steps_completed()
        state = optimizer_steps.state() if done else optimizer_steps.State()
        original(obj, f, *args, **kwargs)
        _note_saved(f, done, state)

    torch.save = torch.serialization.save = save  # type: ignore[attr-defined]


def saved_at(path: Path) -> Saved | None:
    """Return how many steps the job had completed when it saved a file; None if that is not known."""
    folder = note_folder()
    try:
        about = path.stat()
        notes = [] if folder is None else list(_read(folder))
    except OSError:
        return None
    # A file that replaces another may have the inode of the one before.
    errors_ns = {abs(note.modified_ns - about.st_mtime_ns): note for note in notes if note.inode == about.st_ino}
    nearest_ns = min(errors_ns, default=TIME_ERROR_NS)
    if nearest_ns >= TIME_ERROR_NS:
        return None
    note = errors_ns[nearest_ns]
    return Saved(note.done, note.own_count, note.weights)


def _read(folder: Path) -> Iterator[_Note]:
    for file in sorted(folder.glob("rank-*.jsonl*")):
        for line in file.read_bytes().splitlines():
            # A power cut may have torn one.
            with contextlib.suppress(msgspec.DecodeError):
                yield _decoder.decode(line)


@harmless
def _note_saved(place: Any, done: int | None, state: optimizer_steps.State) -> None:
    folder = note_folder()
    # What is saved before the first step is no progress.
    if not done or folder is None:
        return
    try:
        about = os.stat(place if isinstance(place, str | os.PathLike) else place.fileno())
    except (AttributeError, OSError):
        # It is no file of this machine.
        return
    own_count, weights = state
    if own_count is not None and not binding.start.goes_on(own_count, done, tolerance=LATE_STEPS_MAX):
        mark(COUNTS_BEGIN_AGAIN)
    note = _Note(inode=about.st_ino, modified_ns=about.st_mtime_ns, done=done, own_count=own_count, weights=weights)
    folder.mkdir(parents=True, exist_ok=True)
    file_of_rank = folder / f"rank-{int(os.environ['RANK']):05d}.jsonl"
    # Training does not wait for the disk: ext4 allocates a file at once that replaces another one.
    with open(file_of_rank, "ab", buffering=0) as file:
        file.write(b"\n%b\n" % msgspec.json.encode(note))
        is_long = file.tell() > NOTES_BYTES_MAX
    if is_long:
        file_of_rank.replace(file_of_rank.with_suffix(".jsonl.older"))
