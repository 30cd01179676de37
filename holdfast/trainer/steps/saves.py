"""The step at which each of the script's files was saved, for files that do not contain it (a snapshot with its epoch
only) or whose number counts something else.

Notes lie in the job's directory, a line for each save. Each rank has a file for saves to files, and another one for
those to streams and folders: a script may stream something after each step. A saved file is known by its inode and its
time, which outlive the renaming that follows a careful save, and are the same on all nodes that share the file system.
A copy of it, and what was saved to a stream or a folder, is known by the number in it.
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

NOTES_BYTES_MAX = 20_000
"""A rank's notes that are longer are set aside, in place of those before. One takes less than 200 bytes, so that the
last 100 saves are known at least."""

FILES, STREAMS = "rank-", "streams-"
"""Begin of the names of files with notes, before the rank."""
FIRST = "00000"

TIME_ERROR_NS = 10 * 10**9
"""Time from the end of a save until its file is closed."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    inode: int = 0
    """0: it was saved to a stream or a folder."""
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


class _Last:
    streamed: tuple[int, tuple[str, int] | None] | None = None
    """Number of steps and number of the last save to a stream or a folder that was noted: one is enough."""


class _Save:
    """Facts about a save at its beginning: if it runs in another thread, training goes on meanwhile."""

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


def find_saves(path: Path | None, number: tuple[str, int] | None) -> tuple[Saved | None, list[Saved]]:
    """Return what was noted when a file was saved; if that is not known, also what was noted of saves that had this
    number in them.
    """
    folder = note_folder()
    if folder is None:
        return None, []
    about = None
    with contextlib.suppress(OSError):
        about = None if path is None else path.stat()
    # Every rank may have notes, and every rank reads them in a restart.
    near, others = _files(folder, has_number=number is not None)
    saved, copies = _search(near, about, number)
    if saved is None and not copies:
        saved, copies = _search(others, about, number)
    return saved, copies if saved is None else []


def _search(
    files: list[Path], about: os.stat_result | None, number: tuple[str, int] | None
) -> tuple[Saved | None, list[Saved]]:
    """Return what these notes have of a file, and of saves with a number."""
    # A file that replaces another may have the inode of the one before.
    saved, nearest_ns = None, TIME_ERROR_NS
    # Ranks may save parts of the weights: each has a digest of its part.
    copies: dict[Saved, None] = {}
    for note in _read(files):
        kept = Saved(note.done, note.own_count, note.weights)
        if number is not None and note.number == number:
            copies[kept] = None
        if about is not None and note.inode == about.st_ino:
            error_ns = abs(note.modified_ns - about.st_mtime_ns)
            if error_ns < nearest_ns:
                saved, nearest_ns = kept, error_ns
    return saved, list(copies)


def _files(folder: Path, has_number: bool) -> tuple[list[Path], list[Path]]:
    """Return the files of notes of this rank and of rank 0, which saves for all in most scripts, and those of others.

    Streams and folders are known by their numbers only.
    """
    kinds = (FILES, STREAMS) if has_number else (FILES,)
    files = sorted(file for kind in kinds for file in folder.glob(f"{kind}*.jsonl*"))
    names = tuple(kind + rank for kind in kinds for rank in (_rank(), FIRST))
    near = [file for file in files if file.name.startswith(names)]
    return near, [file for file in files if not file.name.startswith(names)]


def _rank() -> str:
    return f"{int(os.environ['RANK']):05d}"


def _read(files: list[Path]) -> Iterator[_Note]:
    for file in files:
        # It may be set aside meanwhile.
        with contextlib.suppress(OSError):
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
    streamed = None if inode else (done, begun.number)
    if streamed is not None and (begun.number is None or streamed == _Last.streamed):
        return
    _Last.streamed = streamed or _Last.streamed
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
    file_of_rank = folder / f"{FILES if inode else STREAMS}{_rank()}.jsonl"
    # Training does not wait for the disk: ext4 allocates a file at once that replaces another one.
    with open(file_of_rank, "ab", buffering=0) as file:
        file.write(b"\n%b\n" % msgspec.json.encode(note))
        is_long = file.tell() > NOTES_BYTES_MAX
    if is_long:
        file_of_rank.replace(file_of_rank.with_suffix(".jsonl.older"))


def _file_of(place: Any) -> tuple[int, int]:
    """Return a file's inode and time; zeros for a stream or a folder."""
    try:
        about = os.stat(place if isinstance(place, str | os.PathLike) else place.fileno())
    except (AttributeError, OSError):
        return 0, 0
    return about.st_ino, about.st_mtime_ns
