"""A rank's side of its node's vault: the state is copied out of this process while the process goes on.

`save` finds where the tensors lie, asks the vault to keep them as they are at this moment, and returns as soon as they
may be changed: the vault has write-protected their pages, and copies each before any thread can write to it
(holdfast_vault.shelf.memory_snapshot). Where the kernel does not allow that, the vault copies at once and `save` waits
for it.

`restore` maps the shard that outlived the last process privately: its tensors are views into that memory, nothing is
parsed or unpickled but the values that are no tensors. The vault compares all of it with its seal before it answers,
and begins with that when the last process ends (holdfast_vault.shelf.shard_checks).
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from holdfast.node import frames
from holdfast.node.frames import WireError
from holdfast.node.vault import messages, seals, userfaultfd, vault_socket
from holdfast.node.vault.huge_pages import collapse
from holdfast.node.vault.messages import (
    AskCertified,
    AskFormer,
    AskShard,
    AskSteps,
    Certified,
    Done,
    Former,
    Join,
    KeepOnly,
    Lay,
    PersistTo,
    Refused,
    Repair,
    Save,
    SealedShard,
    SealedStep,
    ShardName,
    Steps,
)
from holdfast.node.vault.mmap_file import map_file
from holdfast.node.vault.seals import BrokenSeal, Bytes
from holdfast.trainer.checkpoint.layout.recipe import PartPlan
from holdfast.trainer.device import FillRefused, Unfit, has_accelerator
from holdfast.trainer.vault_client.shard_layout import (
    NotKeepable,
    TensorPlace,
    aligned,
    copyable,
    lay,
    place,
    put_together,
    take_apart,
    view,
)

if TYPE_CHECKING:
    from holdfast.trainer.device.copies import DeviceCopies

PAGE_BYTES = mmap.PAGESIZE
DIRECT_BYTES = 1 << 20
"""A smaller tensor is first copied aside: its pages may hold other things, whose writers would wait without need."""


log = logging.getLogger("holdfast.trainer.checkpoint")


class Shard(NamedTuple):
    """The bytes of a rank's state, and what describes them: the index, and what is no tensor."""

    layout: bytes
    objects: bytes
    memory: Bytes


class MemoryRefused(RuntimeError):
    """The vault cannot do it; the message is its reason."""


@contextmanager
def refused_if_unreadable(what: str) -> Iterator[None]:
    """Raise MemoryRefused for whatever happens while a state is put together again.

    Unpickling runs the script's own code, which may have changed since: its classes can fail in any way.
    """
    try:
        yield
    except Exception as error:
        raise MemoryRefused(f"{what} cannot be read by this code: {type(error).__name__}: {error}") from error


class VaultClient:
    def __init__(
        self,
        directory: Path,
        name: ShardName,
        generation: int,
        persist_to: PersistTo | None = None,
        copies: DeviceCopies | None = None,
        *,
        is_waited_for: bool = False,
    ) -> None:
        """`directory` is the node's state directory. Steps also go to `persist_to` at intervals. `copies` keeps what
        lies on an accelerator, beside training. `is_waited_for`: the vault copies a save before it answers, from memory
        that may be anywhere and be given back at once. Raises WireError without a vault.
        """
        self._copies = copies
        self._is_waited_for = is_waited_for
        try:
            self._link = vault_socket.connect(directory)
        except OSError as error:
            raise WireError(f"no vault answers in {directory}: {error.strerror}") from error
        # No script closes it: Python would warn of that (`-X dev`), or print an error (`-W error`).
        weakref.finalize(self, self._link.close)
        self._join = Join(
            name=name, generation=generation, pid=os.getpid(), ledger=os.environ.get("HOLDFAST_LEDGER", "")
        )
        self._places: tuple[TensorPlace, ...] | None = None
        self._aside = np.empty(0, np.uint8)
        # Memory that is given back is not protected any more: what is being copied must not be freed before it is.
        # Storages, for a tensor that is held may still get other memory (`tensor.data = ...`).
        self._held: list[object] = []
        self._to_populate: tuple[tuple[int, int], ...] = ()
        self.protects = False
        self.writers_waited_s = 0.0
        """Time for which this process's threads have waited for the copies of all saves but the last."""
        self._ask(self._join)
        if persist_to is not None:
            self._ask(persist_to)

    def save(self, step: int, state: dict[str, Any], plan: Callable[[], PartPlan] | None = None) -> None:
        """Keep the state as it is now; on return everything in it may be changed.

        `plan` returns what the rank would write of it to a disk. It is asked only when tensors have changed place.
        Raises MemoryRefused if the state is not kept; what was kept before still is. StepSkipped: likewise, and that
        needs no report.
        """
        try:
            leaves, objects = take_apart(state)
        except NotKeepable as error:
            raise MemoryRefused(str(error)) from error
        if self._copies is not None and self._copies.takes(leaves):
            try:
                self._copies.save(step, leaves, objects, plan)
                return
            except FillRefused as error:
                raise MemoryRefused(str(error)) from error
            except Unfit as error:
                log.warning("the state is copied from the device within each call, and training waits: %s", error)
        distinct = {leaf.memory: leaf.tensor for leaf in leaves}
        large = {
            memory: tensor for memory, tensor in distinct.items() if tensor.nbytes >= DIRECT_BYTES and _is_plain(tensor)
        }
        for memory in _written_by_device(large):
            del large[memory]
        small = [(memory, tensor) for memory, tensor in distinct.items() if memory not in large]
        self._make_room_aside(sum(aligned(tensor.nbytes) for _, tensor in small))
        addresses = {memory: tensor.data_ptr() for memory, tensor in large.items()}
        base, at = self._aside.ctypes.data, 0
        for memory, tensor in small:
            addresses[memory] = base + at if tensor.nbytes else 0
            aside = view(self._aside[at : at + tensor.nbytes], tensor.dtype, tuple(tensor.shape))
            try:
                copyable(aside).copy_(copyable(tensor.detach()))
            except NotImplementedError as error:
                raise MemoryRefused(f"torch copies no tensor of {tensor.dtype}: {error}") from error
            at += aligned(tensor.nbytes)
        places = tuple(place(leaf, addresses[leaf.memory]) for leaf in leaves)
        if places != self._places:
            self._lay(places, plan() if plan is not None else None)
        try:
            _populate(self._to_populate)
        except userfaultfd.NotSupported as error:
            raise MemoryRefused(str(error)) from error
        answer, _ = self._ask(Save(step=step, objects=objects))
        self.writers_waited_s += answer.writers_waited_s if isinstance(answer, Done) else 0.0
        # Its answer comes after the seal of the save before.
        self._held = [*(tensor.untyped_storage() for tensor in large.values()), self._aside] if self.protects else []

    def steps(self, at_most: int | None = None) -> tuple[SealedStep, ...]:
        """Return this rank's steps in the vault, newest first; if none is `at_most`, also those on other nodes."""
        return self.kept(at_most).sealed

    def kept(self, at_most: int | None = None) -> Steps:
        """Return the kept steps, with the newest that this rank has made."""
        answer, _ = self._ask(AskSteps(at_most=at_most))
        assert isinstance(answer, Steps)
        return answer

    def keep_only(self, sealed: SealedStep | None, *, from_disk: bool = False) -> None:
        """Drop all other steps: the job continues from this one (None: from none); certified steps behind it stay.

        `from_disk`: it was not read from memory.
        """
        self._ask(KeepOnly(sealed=sealed, from_disk=from_disk))

    def certified_up_to(self) -> int | None:
        """Return the newest certified step: of the steps on a disk, the newest up to it must stay. None: none must."""
        answer, _ = self._ask(AskCertified())
        assert isinstance(answer, Certified)
        return answer.up_to

    def restore(self, sealed: SealedStep, *, to_device: bool = False) -> dict[str, Any]:
        """Return the state of a step; its tensors are views into a private mapping of the shard, its DTensors `DPart`s.

        `to_device`: those that lay on an accelerator are views into one piece of its memory, if there is room for it.
        Bytes other than those saved are first replaced from other nodes that have them. Raises MemoryRefused if the
        vault does not have it, there is no memory to map it, or this code cannot read it; BrokenSeal if it is damaged
        everywhere.
        """
        try:
            return self._read(sealed, to_device)
        except BrokenSeal as damage:
            try:
                self._ask(Repair(sealed=sealed))
            except MemoryRefused as error:
                raise BrokenSeal(f"{damage}; it cannot be mended: {error}") from error
            return self._read(sealed, to_device)

    def _read(self, sealed: SealedStep, to_device: bool) -> dict[str, Any]:
        what = f"step {sealed.step} of rank {self._join.name.rank}"
        shard, memory = self._mapped(AskShard(sealed=sealed), what)
        with refused_if_unreadable(what):
            copies = self._copies if to_device else None
            on_device = copies.upload(shard.index, memory) if copies is not None else None
            return put_together(shard.index, shard.objects, memory, on_device)

    def _mapped(self, request: AskShard, what: str) -> tuple[SealedShard, Bytes]:
        shard, descriptor = self._ask(request)
        assert isinstance(shard, SealedShard) and descriptor is not None
        try:
            memory = map_file(descriptor, shard.seal.nbytes, private=True)
        except OSError as error:
            raise MemoryRefused(f"{what} cannot be mapped: {error.strerror}") from error
        finally:
            os.close(descriptor)
        seals.check_notes(shard.seal, (shard.index, shard.objects), what)
        if shard.damaged:
            raise seals.broken(shard.seal, shard.damaged, what)
        return shard, memory

    def former(self) -> Former:
        """Return what this node has of the job from when it had another number of ranks."""
        answer, _ = self._ask(AskFormer())
        assert isinstance(answer, Former)
        return answer

    def former_shard(self, sealed: SealedStep) -> Shard:
        """Return such a step, of some rank. Raises MemoryRefused or BrokenSeal without it."""
        shard, memory = self._mapped(AskShard(sealed=sealed, of_former=True), f"step {sealed.step} of another size")
        return Shard(shard.index, shard.objects, memory)

    def close(self) -> None:
        """End the connection; what is sealed stays."""
        self._link.close()

    def _lay(self, places: tuple[TensorPlace, ...], plan: PartPlan | None) -> None:
        index, pieces, nbytes = lay(places, plan)
        protected = _pages_of(pieces)
        if self.protects:
            # Memory belongs to one descriptor: the vault lets go of the one that it has.
            self._ask(self._join)
        descriptor = self._protect(protected)
        try:
            self._ask(self._join, descriptor)
        finally:
            if descriptor is not None:
                # If it were open here too, waiting writers would never be released when the vault ends.
                os.close(descriptor)
        self.protects = descriptor is not None
        self._ask(Lay(nbytes=nbytes, index=index, pieces=pieces, protected=protected if self.protects else ()))
        self._places = places

    def _protect(self, ranges: tuple[tuple[int, int], ...]) -> int | None:
        """Return a descriptor by which the vault can protect these pages; None where the kernel has none for us, or
        nothing is copied later.
        """
        if self._is_waited_for:
            return None
        try:
            descriptor = userfaultfd.open_descriptor()
        except userfaultfd.NotSupported:
            return None
        try:
            for address, nbytes in ranges:
                collapse(address, nbytes)
                userfaultfd.register(descriptor, address, nbytes)
            self._to_populate = () if userfaultfd.marks_absent_pages() else ranges
            _populate(self._to_populate)
        except userfaultfd.NotSupported:
            os.close(descriptor)
            self._to_populate = ()
            return None
        return descriptor

    def _make_room_aside(self, nbytes: int) -> None:
        if nbytes > self._aside.size:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._aside = np.frombuffer(memory, np.uint8)

    def _ask(self, request: messages.Request, descriptor: int | None = None) -> tuple[messages.Answer, int | None]:
        frames.send(self._link, request, descriptor)
        answer, beside = frames.receive(self._link, messages.answers)
        if isinstance(answer, Refused):
            raise MemoryRefused(answer.reason)
        return answer, beside


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if its bytes lie in this process's memory one after the other."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _written_by_device(tensors: Mapping[Hashable, torch.Tensor]) -> Sequence[Hashable]:
    if not tensors or not has_accelerator():
        return ()
    from holdfast.trainer.device.pinned import written_by_device

    return written_by_device(tensors)


def _populate(ranges: Sequence[tuple[int, int]]) -> None:
    for address, nbytes in ranges:
        userfaultfd.populate(address, nbytes)


def _pages_of(pieces: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the page-aligned ranges that hold the pieces, merged where they touch."""
    merged: list[list[int]] = []
    for address, nbytes, _ in sorted(pieces):
        first, last = address // PAGE_BYTES * PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES) * PAGE_BYTES
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return tuple((first, last - first) for first, last in merged)


__all__ = ["BrokenSeal", "MemoryRefused", "VaultClient"]
