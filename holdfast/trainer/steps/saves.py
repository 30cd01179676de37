"""The step at which each of the script's files was saved, for files that do not contain it (a snapshot with its epoch
only) or whose number counts something else.

Notes lie in the job's directory, a file for each rank and a line for each save. A saved file is known by its inode and
its time, which outlive the renaming that follows a careful save, and are the same on all nodes that share the file
system. A copy of it, and what was saved to a stream or a folder, is known by the number in it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.trainer.phases import binding
from holdfast.trainer.steps import optimizer_steps
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.notes import COUNTS_BEGIN_AGAIN, mark, note_folder
from holdfast.trainer.steps.step_start import LATE_STEPS_MAX, Saved, number_in

NOTES_BYTES_MAX = 16_384
"""A rank's notes that are longer are set aside, in place of those before: it remembers 100 saves or more."""

TIME_ERROR_NS = 10 * 10**9
"""Time from the end of a save until its file is closed."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    inode: int = 0
    """0: it is no file of this machine."""
    modified_ns: int = 0
    done: int
    """Number of steps that the job had completed."""
    own_count: int | None = None
    """Number of steps that its optimizer had counted by itself; None if it keeps no count."""
    weights: str | None = None
    """A digest of the weights that the optimizer had reached."""
    number: tuple[str, int] | None = None
    """The number in it, and its name."""


_decoder = msgspec.json.Decoder(_Note)


class _Save:
    """What is known of a save as it begins: in another thread, training goes on meanwhile."""

    def __init__(self, obj: object) -> None:
        self.done = binding.steps_completed()
        self.state = optimizer_steps.state() if self.done else optimizer_steps.State()
        self.number: tuple[str, int] | None = None
        if self.done:
            _read_number(self, obj)


def patch_torch_save(torch: ModuleType) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        begun = _Save(obj)
        original(obj, f, *args, **kwargs)
        _note_saved(f, begun)

    torch.save = torch.serialization.save = save  # type: ignore[attr-defined]


def patch_dcp_save(package: ModuleType) -> None:
    """Hook what `torch.distributed.checkpoint` saves with."""
    for name in ("save", "async_save"):
        setattr(package, name, _noting_save(getattr(package, name)))


def _noting_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        begun = _Save(args[0] if args else kwargs.get("state_dict"))
        result = original(*args, **kwargs)
        _note_saved(None, begun)
        return result

    return save


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


def saved_with(number: tuple[str, int]) -> list[Saved]:
    """Return what is known of the saves of this number, one for each step."""
    folder = note_folder()
    notes: dict[int, _Note] = {}
    with contextlib.suppress(OSError):
        notes = {note.done: note for note in _read(folder) if note.number == number} if folder is not None else {}
    return [Saved(note.done, note.own_count, note.weights) for note in notes.values()]


def _read(folder: Path) -> Iterator[_Note]:
    for file in sorted(folder.glob("rank-*.jsonl*")):
        for line in file.read_bytes().splitlines():
            # A power cut may have torn one.
            with contextlib.suppress(msgspec.DecodeError):
                yield _decoder.decode(line)


@harmless
def _read_number(begun: _Save, obj: object) -> None:
    begun.number = number_in(obj)


@harmless
def _note_saved(place: Any, begun: _Save) -> None:
    folder, done = note_folder(), begun.done
    # What is saved before the first step is no progress.
    if not done or folder is None:
        return
    inode, modified_ns = _file_of(place)
    if not inode and begun.number is None:
        return
    own_count, weights = begun.state
    if own_count is not None and not binding.start.goes_on(own_count, done, tolerance=LATE_STEPS_MAX):
        mark(COUNTS_BEGIN_AGAIN)
    note = _Note(
        inode=inode,
        modified_ns=modified_ns,
        done=done,
        own_count=own_count,
        weights=weights,
        number=begun.number,
    )
    folder.mkdir(parents=True, exist_ok=True)
    file_of_rank = folder / f"rank-{int(os.environ['RANK']):05d}.jsonl"
    # Training does not wait for the disk: ext4 allocates a file at once that replaces another one.
    with open(file_of_rank, "ab", buffering=0) as file:
        file.write(b"\n%b\n" % msgspec.json.encode(note))
        is_long = file.tell() > NOTES_BYTES_MAX
    if is_long:
        file_of_rank.replace(file_of_rank.with_suffix(".jsonl.older"))


def _file_of(place: Any) -> tuple[int, int]:
    """Return a file's inode and time; zeros if it is none of this machine."""
    try:
        about = os.stat(place if isinstance(place, str | os.PathLike) else place.fileno())
    except (AttributeError, OSError):
        return 0, 0
    return about.st_ino, about.st_mtime_ns
