"""`torch.distributed.checkpoint` into the vault: what `FileSystemWriter` writes goes through memory.

Each rank keeps its own files. The coordinator keeps `.metadata` with its own: that file declares the checkpoint
complete, so it is published when the files of all ranks are on the disk, and until then every rank waits for it before
it looks there.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from holdfast.trainer.write_behind import disk_writes
from holdfast.trainer.write_behind.disk_state import state_of
from holdfast.trainer.write_behind.disk_writes import NotReplaceable
from holdfast.trainer.write_behind.engine import WriteBehind, await_files
from holdfast.trainer.write_behind.guards import Guards
from holdfast.trainer.write_behind.saved_files import FileRecord, Kind, SavedFile

METADATA = ".metadata"


class _Stream(io.BytesIO):
    """Stays readable when DCP closes it."""

    def close(self) -> None:
        """Do nothing: the contents are wanted."""


class _MemoryFiles:
    """Takes what a writer makes, and asks the writer's own file system for everything else."""

    def __init__(self, beneath: Any, files: dict[str, _Stream]) -> None:
        self._beneath = beneath
        self._files = files

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with self._beneath.create_stream(path, mode) as stream:
                yield stream
            return
        self._files[os.path.realpath(path)] = stream = _Stream()
        yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._files[os.path.realpath(new_path)] = self._files.pop(os.path.realpath(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


@dataclass
class _Round:
    """One save of a writer."""

    is_coordinator: bool = False
    is_ours: bool = False
    files: dict[str, _Stream] = field(default_factory=dict)


class DcpSaves:
    def __init__(self, engine: WriteBehind, guards: Guards) -> None:
        self._engine = engine
        self._guards = guards
        self._rounds: dict[int, _Round] = {}

    def patch(self, package: ModuleType) -> None:
        """Patch the writer for directories, and the function behind `save` and `async_save`."""
        from torch.distributed.checkpoint import filesystem, state_dict_saver

        kind: Any = filesystem._FileSystemWriter
        set_up, plan, write, finish = (
            kind.set_up_storage_writer,
            kind.prepare_local_plan,
            kind.write_data,
            kind.finish,
        )

        @functools.wraps(set_up)
        def set_up_storage_writer(writer: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
            set_up(writer, is_coordinator, *args, **kwargs)
            self._rounds[id(writer)] = _Round(is_coordinator)

        @functools.wraps(plan)
        def prepare_local_plan(writer: Any, local: Any) -> Any:
            if (current := self._rounds.get(id(writer))) is not None:
                current.is_ours = self._takes(writer)
            return plan(writer, local)

        @functools.wraps(write)
        def write_data(writer: Any, *args: Any, **kwargs: Any) -> Any:
            current = self._rounds.get(id(writer))
            if current is None or not current.is_ours:
                return write(writer, *args, **kwargs)
            with _into_memory(writer, current.files):
                written = write(writer, *args, **kwargs)
            if not current.is_coordinator:
                del self._rounds[id(writer)]
                self._keep(current.files, (), (os.path.realpath(os.path.join(writer.path, METADATA)),))
            return written

        @functools.wraps(finish)
        def finish_save(writer: Any, metadata: Any, *args: Any, **kwargs: Any) -> None:
            current = self._rounds.pop(id(writer), None)
            if current is None or not current.is_ours:
                finish(writer, metadata, *args, **kwargs)
                return
            own = set(current.files)
            with _into_memory(writer, current.files):
                finish(writer, metadata, *args, **kwargs)
            places = {info.relative_path for info in metadata.storage_data.values()}
            everyones = {os.path.realpath(os.path.join(writer.path, place)) for place in places}
            self._keep(current.files, sorted(everyones - own), ())

        kind.set_up_storage_writer, kind.prepare_local_plan = set_up_storage_writer, prepare_local_plan
        kind.write_data, kind.finish = write_data, finish_save
        whole: Any = state_dict_saver._save_state_dict

        @functools.wraps(whole)
        def save_state_dict(*args: Any, **kwargs: Any) -> Any:
            with self._guards.within_a_save():
                return whole(*args, **kwargs)

        state_dict_saver._save_state_dict = save_state_dict

    def _takes(self, writer: Any) -> bool:
        """Return True for a new checkpoint in a directory, of all ranks together.

        One that is overwritten goes straight to the disk: its old files could be taken for the new ones.
        """
        from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

        return (
            self._engine.is_own_process
            and type(writer) is FileSystemWriter
            and type(writer.fs) is FileSystem
            and bool(getattr(writer, "use_collectives", True))
            and not (os.path.isdir(writer.path) and os.listdir(writer.path))
        )

    def _keep(self, streams: dict[str, _Stream], after: Iterable[str], others: tuple[str, ...]) -> None:
        """Keep a rank's files; without memory for them, write them here and now.

        Raises OSError: the disk's refusal, also that of the save before.
        """
        self._engine.settle()
        files: list[SavedFile] = []
        tensors: list[torch.Tensor] = []
        for path, stream in streams.items():
            record = FileRecord("", data=b"")
            if stream.getbuffer().nbytes:
                record = FileRecord("", tensor=len(tensors))
                tensors.append(torch.frombuffer(stream.getbuffer(), dtype=torch.uint8))
            is_last = os.path.basename(path) == METADATA
            target = disk_writes.Target(path, state_of(path), None)
            files.append(
                SavedFile(
                    path=path,
                    kind=Kind.RAW,
                    records=(record,),
                    nbytes=stream.getbuffer().nbytes,
                    before=target.before,
                    after=tuple(after) if is_last else (),
                )
            )
        self._guards.put_in_place()
        if _can_wait(files) and self._engine.keep(files, tensors, (), others):
            return
        for file in files:
            await_files(file.after)
            disk_writes.publish(file, tensors)


def _can_wait(files: list[SavedFile]) -> bool:
    """Return True if the disk would take these files now."""
    try:
        for file in files:
            disk_writes.target_of(file.path)
    except NotReplaceable:
        return False
    return disk_writes.has_room(files[0].path, sum(file.nbytes for file in files)) if files else True


@contextmanager
def _into_memory(writer: Any, files: dict[str, _Stream]) -> Iterator[None]:
    # DCP would have the whole machine write its disks for a stream without a descriptor.
    beneath, syncs = writer.fs, writer.sync_files
    writer.fs, writer.sync_files = _MemoryFiles(beneath, files), False
    try:
        yield
    finally:
        writer.fs, writer.sync_files = beneath, syncs
