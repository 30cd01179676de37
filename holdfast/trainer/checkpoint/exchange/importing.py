"""A checkpoint from elsewhere, of torch.distributed.checkpoint or safetensors, as one that a Checkpointer restores.

It becomes a single part, written tensor by tensor. What it was sharded like does not matter: a restore reshards.
"""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import safetensors
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.exchange import plain_pickle
from holdfast.trainer.checkpoint.exchange.contents import Key
from holdfast.trainer.checkpoint.exchange.safetensors_files import INDEX, PATHS, default_path
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart, PartLayout
from holdfast.trainer.checkpoint.storage.directory import Storage

PART = "rank-00000.part"
KeyPath = tuple[str | int, ...]


class Incoming(NamedTuple):
    """A value from elsewhere, read when it is asked for."""

    key: str
    path: KeyPath
    read: Callable[[], Any]


def incoming(source: Path, *, trusts: bool = False) -> Iterator[Incoming]:
    """Read the values of a directory or file in a known format; raises CheckpointError if it is in none. `trusts`: run
    what its pickles name.
    """
    if (source / ".metadata").is_file():
        return _explained(source, _from_dcp(source, pickle if trusts else plain_pickle))
    if source.is_file() and source.suffix == ".safetensors":
        return _explained(source, _from_safetensors([source]))
    if source.is_dir() and (files := _safetensors_files(source)):
        return _explained(source, _from_safetensors(files))
    raise CheckpointError(
        f"{source} is neither a directory of torch.distributed.checkpoint (it would hold .metadata) nor of safetensors"
    )


def import_checkpoint(storage: Storage, step: int, values: Iterator[Incoming], on_bytes: Callable[[int], None]) -> str:
    """Publish the values as a step. Returns its location."""
    layout, spaces = PartLayout(), set[str]()

    def chunks() -> Iterator[memoryview | bytes]:
        for it in values:
            spaces.add(Key.of(it.key).space)
            data, padding = _add(layout, it)
            yield data
            yield padding
            on_bytes(memoryview(data).nbytes)
        yield layout.index()

    try:
        size = storage.write(step, PART, chunks())
        part = CheckpointPart(
            name=PART,
            size=size,
            index_offset=layout.index_offset,
            index_crc32=layout.index_crc32,
            holds=tuple(sorted(spaces)),
        )
        return storage.publish(
            CheckpointManifest(
                step=step,
                generation=0,
                world_size=_world_size(spaces),
                mesh={},
                created_at=time.time(),
                parts=(part,),
            )
        )
    except BaseException:
        storage.discard(step)
        raise


def renamed(values: Iterator[Incoming], entry: str) -> Iterator[Incoming]:
    if "." in entry:
        raise CheckpointError(f"{entry!r}: an entry of a state has no dot in its name")
    for it in values:
        yield Incoming(f"{entry}.{it.key}", (entry, it.key), it.read)


def _explained(source: Path, values: Iterator[Incoming]) -> Iterator[Incoming]:
    with _readable(source):
        for it in values:
            yield it._replace(read=partial(_read, source, it))


def _read(source: Path, it: Incoming) -> Any:
    with _readable(source):
        return it.read()


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    # Others wrote it: anything may be raised.
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, plain_pickle.RunsCode) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{source} cannot be read: {text}") from error


def _add(layout: PartLayout, it: Incoming) -> tuple[memoryview | bytes, bytes]:
    value = it.read()
    if not isinstance(value, torch.Tensor):
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        return pickled, layout.add(it.key, it.path, pickled)
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().data
    shape = tuple(value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    begin = (0,) * len(shape)
    return data, layout.add(it.key, it.path, data, dtype=dtype, shape=shape, chunk_offset=begin, chunk_shape=shape)


def _world_size(spaces: set[str]) -> int:
    """Return the world size for the manifest: per-rank state restores onto as many ranks as wrote it."""
    ranks = [int(space.removeprefix("rank/")) for space in spaces if space.startswith("rank/")]
    return max(ranks, default=0) + 1


def _from_dcp(source: Path, pickles: ModuleType) -> Iterator[Incoming]:
    reader = FileSystemReader(source)
    metadata: Metadata = pickles.loads((source / ".metadata").read_bytes())
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    paths: dict[str, KeyPath] = metadata.planner_data or {}
    for key in metadata.state_dict_metadata:
        read = partial(_read_dcp, reader, metadata, key, pickles)
        yield Incoming(key, paths.get(key, default_path(key)), read)


class _Planner(DefaultLoadPlanner):
    """Reads values that are no tensors by another unpickler than the library's, which runs what they name."""

    def __init__(self, pickles: ModuleType) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._pickles = pickles

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        found = torch.load(value, weights_only=False, pickle_module=self._pickles)
        self.state_dict[read_item.dest_index.fqn] = found


def _read_dcp(reader: FileSystemReader, metadata: Metadata, key: str, pickles: ModuleType) -> Any:
    described = metadata.state_dict_metadata[key]
    state: dict[str, Any] = {key: None}
    if isinstance(described, TensorStorageMetadata):
        state[key] = torch.empty(described.size, dtype=described.properties.dtype)
    planner = _Planner(pickles)
    planner.set_up_planner(state, metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    return state[key]


def _safetensors_files(source: Path) -> list[Path]:
    index = source / INDEX
    if not index.is_file():
        return sorted(source.glob("*.safetensors"))
    with _readable(index):
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    if missing := [name for name in names if Path(name).name != name or not (source / name).is_file()]:
        raise CheckpointError(f"{index} names {', '.join(sorted(missing))}, which are not there")
    return sorted(source / name for name in names)


def _from_safetensors(files: list[Path]) -> Iterator[Incoming]:
    for path in files:
        with safetensors.safe_open(path, framework="pt") as file:
            paths = json.loads((file.metadata() or {}).get(PATHS, "{}"))
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                yield Incoming(key, tuple(paths.get(key, default_path(key))), partial(file.get_tensor, key))
