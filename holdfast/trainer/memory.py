"""A rank's side of its node's vault: the state is copied out of this process while the process goes on.

`save` finds where the tensors lie, asks the vault to keep them as they are at this moment, and returns as soon as they
may be changed: the vault has write-protected their pages, and copies each before anybody can write to it
(holdfast_agent.vault.snapshot). Where the kernel does not allow that, the vault copies at once and `save` waits for it.

`restore` maps the shard that outlived the last process privately: its tensors are views into that memory, nothing is
parsed or unpickled but the values that are no tensors.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.distributed.tensor import DTensor

from holdfast import seals, userfaultfd, vault_socket, vault_wire
from holdfast.huge_pages import collapse
from holdfast.seals import BrokenSeal
from holdfast.trainer.checkpoint_format import set_element
from holdfast.vault_wire import (
    AskShard,
    AskSteps,
    Join,
    KeepOnly,
    Lay,
    Refused,
    Save,
    SealedStep,
    Shard,
    ShardName,
    Steps,
)

PAGE_BYTES = mmap.PAGESIZE
ALIGNMENT = 64
DIRECT_BYTES = 1 << 20
"""A smaller tensor is first copied aside: its pages may hold other things, whose writers would wait without need."""

KeyPath = tuple[str | int, ...]


class MemoryRefused(RuntimeError):
    """The vault cannot do it; the message is its reason."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor lies in a shard: `offset` in bytes, elements in row-major order."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    offset: int


_entries = msgspec.msgpack.Decoder(tuple[Entry, ...])


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the state, and where it lies now. Equal places mean that the vault knows them already."""

    path: KeyPath
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int


class VaultClient:
    """The connection of one rank to its node's vault."""

    def __init__(self, directory: Path, name: ShardName, generation: int) -> None:
        """`directory` is the node's state directory.

        Raises:
            VaultWireError: there is no vault.
        """
        try:
            self._link = vault_socket.connect(directory)
        except OSError as error:
            raise vault_wire.VaultWireError(f"no vault answers in {directory}: {error.strerror}") from error
        self._join = Join(name=name, generation=generation, pid=os.getpid())
        self._places: tuple[Place, ...] | None = None
        self._aside = np.empty(0, np.uint8)
        # Memory that is given back is not protected any more: what is being copied must not be freed before it is.
        self._held: list[torch.Tensor] = []
        self.protects = False
        self._ask(self._join)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Keep the state as it is now; on return everything in it may be changed.

        Raises:
            MemoryRefused: it is not kept; what was kept before still is.
        """
        tensors, objects = _split(state)
        large = [(path, tensor) for path, tensor in tensors if tensor.nbytes >= DIRECT_BYTES and _is_plain(tensor)]
        small = [(path, tensor) for path, tensor in tensors if tensor.nbytes < DIRECT_BYTES or not _is_plain(tensor)]
        self._make_room_aside(sum(_aligned(tensor.nbytes) for _, tensor in small))
        places, at = [_place(path, tensor, tensor.data_ptr()) for path, tensor in large], 0
        for path, tensor in small:
            aside = self._aside[at : at + tensor.nbytes]
            places.append(_place(path, tensor, aside.ctypes.data if tensor.nbytes else 0))
            _view(aside, tensor.dtype, tuple(tensor.shape)).copy_(tensor.detach())
            at += _aligned(tensor.nbytes)
        if tuple(places) != self._places:
            self._lay(tuple(places))
        self._ask(Save(step=step, objects=pickle.dumps(objects, protocol=pickle.HIGHEST_PROTOCOL)))
        # Its answer comes after the seal of the save before.
        self._held = [tensor for _, tensor in large]

    def steps(self) -> tuple[SealedStep, ...]:
        """The steps of this rank that the vault has whole, newest first."""
        answer, _ = self._ask(AskSteps())
        assert isinstance(answer, Steps)
        return answer.sealed

    def keep_only(self, sealed: SealedStep | None) -> None:
        """The job goes on from this step (None: from none of these): all others are forgotten."""
        self._ask(KeepOnly(sealed=sealed))

    def restore(self, sealed: SealedStep) -> dict[str, Any]:
        """The state of a step; its tensors are views into a private mapping of the shard.

        Raises:
            MemoryRefused: the vault does not have it.
            BrokenSeal: its bytes are not those that were saved.
        """
        shard, descriptor = self._ask(AskShard(sealed=sealed))
        assert isinstance(shard, Shard) and descriptor is not None
        try:
            mapping = mmap.mmap(descriptor, max(shard.seal.nbytes, 1), flags=mmap.MAP_PRIVATE)
        finally:
            os.close(descriptor)
        memory = np.frombuffer(mapping, np.uint8)[: shard.seal.nbytes]
        what = f"step {sealed.step} of rank {self._join.name.rank}"
        seals.check(shard.seal, (shard.index, shard.objects), memory, what)
        state: dict[str, Any] = {}
        for entry in _entries.decode(shard.index):
            dtype = getattr(torch, entry.dtype)
            nbytes = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
            view = _view(memory[entry.offset : entry.offset + nbytes], dtype, entry.shape)
            set_element(state, entry.path, view)
        for path, value in pickle.loads(shard.objects):
            set_element(state, path, value)
        return state

    def close(self) -> None:
        """End the connection; what is sealed stays."""
        self._link.close()

    def _lay(self, places: tuple[Place, ...]) -> None:
        """Tell the vault where the tensors lie now."""
        pieces: list[tuple[int, int, int]] = []
        entries: list[Entry] = []
        offset = 0
        for place in places:
            entries.append(Entry(place.path, place.dtype, place.shape, offset))
            if place.nbytes:
                pieces.append((place.address, place.nbytes, offset))
            offset += _aligned(place.nbytes)
        protected = _pages_of(pieces)
        if self.protects:
            # Memory belongs to one descriptor: the vault lets go of the one that it has.
            self._ask(self._join)
        descriptor = self._protect(protected)
        try:
            self._ask(self._join, descriptor)
        finally:
            if descriptor is not None:
                # Were it held here too, nobody would ever be released if the vault ended.
                os.close(descriptor)
        self.protects = descriptor is not None
        index = msgspec.msgpack.encode(entries)
        self._ask(Lay(nbytes=offset, index=index, pieces=tuple(pieces), protected=protected if self.protects else ()))
        self._places = places

    def _protect(self, ranges: tuple[tuple[int, int], ...]) -> int | None:
        """A descriptor by which the vault can protect these pages; None where the kernel has none for us."""
        try:
            descriptor = userfaultfd.open_descriptor()
        except userfaultfd.NotSupported:
            return None
        try:
            for address, nbytes in ranges:
                collapse(address, nbytes)
                userfaultfd.register(descriptor, address, nbytes)
        except userfaultfd.NotSupported:
            os.close(descriptor)
            return None
        return descriptor

    def _make_room_aside(self, nbytes: int) -> None:
        if nbytes > self._aside.size:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._aside = np.frombuffer(memory, np.uint8)

    def _ask(self, request: vault_wire.Request, descriptor: int | None = None) -> tuple[vault_wire.Answer, int | None]:
        vault_wire.send(self._link, request, descriptor)
        answer, beside = vault_wire.receive_answer(self._link)
        if isinstance(answer, Refused):
            raise MemoryRefused(answer.reason)
        return answer, beside


def _split(state: dict[str, Any]) -> tuple[list[tuple[KeyPath, torch.Tensor]], list[tuple[KeyPath, Any]]]:
    """The tensors of a nested state with their paths, and everything else with its own."""
    tensors: list[tuple[KeyPath, torch.Tensor]] = []
    objects: list[tuple[KeyPath, Any]] = []
    for path, value in _leaves(state, ()):
        if isinstance(value, DTensor):
            raise MemoryRefused(f"{'.'.join(map(str, path))} is a DTensor, which this engine does not keep yet")
        if isinstance(value, torch.Tensor):
            tensors.append((path, value))
        else:
            objects.append((path, value))
    return tensors, objects


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _is_plain(tensor: torch.Tensor) -> bool:
    """Its bytes lie in this process's memory one after the other."""
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _place(path: KeyPath, tensor: torch.Tensor, address: int) -> Place:
    return Place(path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes, address)


def _view(memory: seals.Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not memory.size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pages_of(pieces: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """The page-aligned ranges that hold the pieces, those that touch made one."""
    merged: list[list[int]] = []
    for address, nbytes, _ in sorted(pieces):
        first, last = address // PAGE_BYTES * PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES) * PAGE_BYTES
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return tuple((first, last - first) for first, last in merged)


__all__ = ["BrokenSeal", "MemoryRefused", "VaultClient"]
