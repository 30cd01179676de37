"""Memory of the vault that this rank fills: mapped here, and pinned where the driver does that.

What is pinned is written by the device itself, and no thread of the host touches it. Pinning takes about a tenth of a
second for a GB and holds up other calls to the driver, so it is done in pieces, in a separate thread, when the vault
has moved the memory into huge pages. Until then copies go by a ring of pinned buffers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

import torch

from holdfast.node.vault.mmap_file import map_file
from holdfast.trainer.device.adapters import Adapter, NotRegistered
from holdfast.trainer.device.copy_plan import CopyPlan
from holdfast.trainer.device.guards import Guard
from holdfast.trainer.vault_client.shard_layout import copyable

PIECE_BYTES = 1 << 30

log = logging.getLogger("holdfast.trainer.checkpoint")


_pinned: set[Landing] = set()
"""Landings whose memory is pinned. It must stay mapped, also when nothing else refers to the landing."""


class Landing:
    """One segment of the vault's."""

    def __init__(self, file: int, descriptor: int, nbytes: int) -> None:
        """Raises OSError: it cannot be mapped."""
        self.file = file
        self.nbytes = nbytes
        self.is_pinned = False
        self._memory = map_file(descriptor, nbytes, private=False)
        self.data = torch.frombuffer(self._memory, dtype=torch.uint8) if nbytes else torch.empty(0, dtype=torch.uint8)
        self._pinned: list[int] = []
        self._views: tuple[CopyPlan, Sequence[torch.Tensor]] | None = None
        self._of_host: tuple[CopyPlan, Sequence[torch.Tensor]] | None = None

    def targets(self, plan: CopyPlan) -> Sequence[torch.Tensor]:
        """Return where each copy of a plan goes, as bytes."""
        if self._views is None or self._views[0] is not plan:
            self._views = plan, [self.data[it.offset : it.offset + it.nbytes] for it in plan.copies]
        return self._views[1]

    def take_host(self, plan: CopyPlan, tensors: Sequence[torch.Tensor]) -> None:
        """Copy what lies in the host's memory, at once."""
        sources = [tensors[index] for index in plan.of(Guard.HOST) if plan.sizes[index]]
        if self._of_host is None or self._of_host[0] is not plan:
            offsets = (plan.offsets[index] for index in plan.of(Guard.HOST) if plan.sizes[index])
            views = [
                copyable(self.data[offset : offset + it.nbytes].view(it.dtype).view(it.shape))
                for offset, it in zip(offsets, sources, strict=True)
            ]
            self._of_host = plan, views
        if sources:
            # In no stub of torch; its optimizers call it as well.
            torch._foreach_copy_(list(self._of_host[1]), [copyable(it.detach()) for it in sources])  # pyright: ignore[reportPrivateImportUsage]

    def pin(self, adapter: Adapter) -> None:
        """Raises NotRegistered; what was pinned is then unpinned again."""
        base = self.data.data_ptr()
        _pinned.add(self)
        try:
            for begin in range(0, self.nbytes, PIECE_BYTES):
                adapter.register(base + begin, min(PIECE_BYTES, self.nbytes - begin))
                self._pinned.append(base + begin)
        except NotRegistered:
            self.unpin(adapter)
            raise
        self.is_pinned = True

    def unpin(self, adapter: Adapter) -> None:
        self.is_pinned = False
        while self._pinned:
            adapter.unregister(self._pinned.pop())
        _pinned.discard(self)


class Landings:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._known: dict[int, Landing] = {}
        self._pinning: threading.Thread | None = None
        self._can_pin = adapter.can_register

    def of(self, descriptor: int, nbytes: int) -> Landing:
        """Return the landing of a segment, known or new. Closes the descriptor. Raises OSError: it cannot be mapped."""
        try:
            file = os.fstat(descriptor).st_ino
            known = self._known.get(file)
            if known is not None and known.nbytes == nbytes:
                return known
            self._drop(file)
            self._known[file] = Landing(file, descriptor, nbytes)
            return self._known[file]
        finally:
            os.close(descriptor)

    def keep_only(self, files: Sequence[int]) -> None:
        """Give back what the vault has no more; nothing is being copied."""
        for file in self._known.keys() - set(files):
            self._drop(file)

    def pin_later(self, landing: Landing, stream: torch.Stream) -> None:
        """Pin it beside training, if this machine can and no other is being pinned. `stream`: any of the device's."""
        if landing.is_pinned or not self._can_pin or (self._pinning is not None and self._pinning.is_alive()):
            return
        self._pinning = threading.Thread(target=self._pin, args=(landing, stream), name="holdfast-pin", daemon=True)
        self._pinning.start()

    def close(self) -> None:
        for file in list(self._known):
            self._drop(file)

    def _pin(self, landing: Landing, stream: torch.Stream) -> None:
        # A new thread uses device 0, where the call would make a context, whichever device this rank has.
        torch.accelerator.set_stream(stream)
        try:
            landing.pin(self._adapter)
        except NotRegistered as error:
            self._can_pin = False
            log.warning("copies of device memory go by pinned buffers of this rank: %s", error)

    def _drop(self, file: int) -> None:
        landing = self._known.pop(file, None)
        if landing is None:
            return
        if self._pinning is not None:
            self._pinning.join()
        landing.unpin(self._adapter)
