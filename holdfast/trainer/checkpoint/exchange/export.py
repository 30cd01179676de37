"""Export of a checkpoint for programs other than Holdfast: the names of its values, and plain DCP.

State marked `PerShard` or `PerRank` is not merged, because nothing in it shows how: a shard's tensors may be slices of
one, or stages of a pipeline that each count their layers from zero. It is exported under the keys that it has here,
which no two shards share; or one shard alone, under the names that it had in the script.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import planner as dcp_planner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.exchange.contents import CheckpointContents, Key, Value, torch_dtype
from holdfast.trainer.checkpoint.layout.manifest import ValueEntry

OnBytes = Callable[[int], None]

DCP_FILE_BYTES = 256 << 20
"""Size of a file of an export to DCP, and about what the export holds in memory. A larger tensor has a file alone."""

_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(save).parameters else {}
"""Arguments by which `save` saves alone. Older releases of torch do so where no process group was made."""


class Outgoing(NamedTuple):
    name: str
    path: tuple[str | int, ...]
    value: Value


class Selection(NamedTuple):
    """Values to export. `apart`: spaces whose state is not merged; `left_out`: spaces whose state is not exported."""

    outgoing: tuple[Outgoing, ...]
    apart: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(it.value.nbytes for it in self.outgoing)


def select(values: Mapping[str, Value], *, shard: str | None = None, only: Collection[str] = ()) -> Selection:
    """Choose what goes out: all, or only these entries of the state.

    `shard` is the one whose state goes out under plain names, beside what is everyone's; no other shard's and no
    rank's. Raises CheckpointError if there is no such shard or entry, or if two values would have one name.
    """
    keys = {key: Key.of(key) for key in values}
    entries = {key.entry for key in keys.values()}
    if unknown := set(only) - entries:
        raise CheckpointError(
            f"the checkpoint has no entry {', '.join(sorted(unknown))}; it has {', '.join(sorted(entries))}"
        )
    chosen = {name: key for name, key in keys.items() if not only or key.entry in only}
    spaces = sorted({key.space for key in keys.values() if key.space})
    if shard is None:
        apart = sorted({key.space for key in chosen.values() if key.space})
        return Selection(tuple(Outgoing(name, values[name].path, values[name]) for name in chosen), tuple(apart), ())
    wanted = f"shard/{shard}"
    if wanted not in spaces:
        labels = [space.removeprefix("shard/") for space in spaces if space.startswith("shard/")]
        raise CheckpointError(
            f"the checkpoint has no shard {shard!r}; it has {', '.join(labels) or 'none: all of it is everyone’s'}"
        )
    outgoing: dict[str, Outgoing] = {}
    for name, key in chosen.items():
        if key.space not in ("", wanted):
            continue
        plain = f"{key.entry}.{key.rest}" if key.rest else key.entry
        if plain in outgoing:
            raise CheckpointError(f"{plain} is both everyone's and the shard's: choose one with --only, or no shard")
        outgoing[plain] = Outgoing(plain, (key.entry, *values[name].path[1:]), values[name])
    return Selection(tuple(outgoing.values()), (), tuple(space for space in spaces if space != wanted))


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a directory that becomes `target` once all is well; raises CheckpointError if `target` has content."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists: name a directory that does not, or an empty one")
    draft = target.absolute().with_name(f".{target.absolute().name}.unfinished-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
        os.rename(draft, target)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def export_dcp(contents: CheckpointContents, outgoing: Iterable[Outgoing], target: Path, on_bytes: OnBytes) -> None:
    """Write a checkpoint of torch.distributed.checkpoint, tensors in the pieces in which they are here."""
    with appearing(target) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        planner = _FromContents(contents, outgoing, on_bytes)
        try:
            save({}, storage_writer=_InFilesOf(draft, DCP_FILE_BYTES), planner=planner, **_ALONE)
        except CheckpointException as error:
            # DCP has wrapped what the only rank there is met, in an exception that is never caught by accident.
            (cause, _) = error.failures[0]
            raise cause from error


class _InFilesOf(FileSystemWriter):
    """Writes several files one after the other: of each, FileSystemWriter holds all tensors until it is written."""

    def __init__(self, path: Path, nbytes: int) -> None:
        super().__init__(path)
        self._nbytes = nbytes

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        for number, items in enumerate(_filled(plan.items, self._nbytes)):
            storage = replace(plan.storage_data, prefix=f"__{number}_")
            results += super().write_data(replace(plan, items=items, storage_data=storage), planner).wait()
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written


def _filled(items: Iterable[WriteItem], nbytes_max: int) -> list[list[WriteItem]]:
    groups: list[list[WriteItem]] = []
    room = 0
    for item in items:
        nbytes = _nbytes(item)
        if not groups or nbytes > room:
            groups.append([])
            room = nbytes_max
        groups[-1].append(item)
        room -= nbytes
    return groups


def _nbytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        data = getattr(item, "bytes_io_data", None)
        return data.nbytes if data else 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


class _FromContents(DefaultSavePlanner):
    """Plans what a checkpoint holds, and reads each piece only when it is its turn to be written."""

    def __init__(self, contents: CheckpointContents, outgoing: Iterable[Outgoing], on_bytes: OnBytes) -> None:
        super().__init__()
        self._contents = contents
        self._outgoing = {it.name: it for it in outgoing}
        self._pieces: dict[MetadataIndex, tuple[str, ValueEntry]] = {}
        self._on_bytes = on_bytes

    def create_local_plan(self) -> SavePlan:
        items = [item for it in self._outgoing.values() for item in self._items(it)]
        self.plan = SavePlan(items, planner_data={it.name: it.path for it in self._outgoing.values()})
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        outgoing = self._outgoing[write_item.index.fqn]
        if outgoing.value.is_object:
            data = io.BytesIO()
            torch.save(self._contents.unpickled(outgoing.value), data)
            self._on_bytes(outgoing.value.nbytes)
            return data
        name, entry = self._pieces[write_item.index]
        self._on_bytes(entry.nbytes)
        return self._contents.piece(name, entry)

    def _items(self, outgoing: Outgoing) -> Iterator[WriteItem]:
        value = outgoing.value
        if value.is_object:
            index = MetadataIndex(outgoing.name)
            yield WriteItem(index, WriteItemType.BYTE_IO, **_size_of(value.nbytes))
            return
        for number, (name, entry) in enumerate(value.pieces):
            index = MetadataIndex(outgoing.name, torch.Size(entry.chunk_offset), number)
            self._pieces[index] = (name, entry)
            yield WriteItem(
                index,
                WriteItemType.TENSOR if len(value.pieces) == 1 else WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(entry.chunk_offset), torch.Size(entry.chunk_shape)),
                    properties=TensorProperties(dtype=torch_dtype(entry.dtype)),
                    size=torch.Size(value.shape),
                ),
            )


def _size_of(nbytes: int) -> dict[str, Any]:
    """Return the fields of a `WriteItem` that have its size; older releases of torch have no such field."""
    known: Any = getattr(dcp_planner, "BytesIOWriteData", None)
    return {} if known is None else {"bytes_io_data": known(nbytes)}


def unpicklable(contents: CheckpointContents, outgoing: Iterable[Outgoing]) -> dict[str, Exception]:
    """Return the values that cannot be read here, because their classes are the script's own; and why."""
    problems: dict[str, Exception] = {}
    for it in outgoing:
        if it.value.is_object:
            problem = _problem(partial(contents.unpickled, it.value))
            if problem is not None:
                problems[it.name] = problem
    return problems


def _problem(attempt: Callable[[], Any]) -> Exception | None:
    try:
        attempt()
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - what a pickle runs may raise anything
        return error
    return None
