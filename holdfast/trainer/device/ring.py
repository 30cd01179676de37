"""A ring of pinned buffers, for machines or moments in which the vault's memory is not pinned itself.

The device writes into one buffer while the host moves another one's bytes on. The thread that does this must have
begun the last copy that an optimizer waits for before that optimizer's step can be queued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from holdfast.trainer.device.adapters import DeviceEvent
from holdfast.trainer.device.copy_plan import CopyPlan

SLOTS = 4


class Ring:
    def __init__(self, event: Callable[[], DeviceEvent], slot_bytes: int, slots: int = SLOTS) -> None:
        """Raises RuntimeError: no memory can be pinned."""
        self._slots = [torch.empty(slot_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
        self.slot_bytes = slot_bytes
        self._events = [event() for _ in range(slots)]
        self._sent = 0

    def copy(
        self,
        plan: CopyPlan,
        parts: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        on_begun: Callable[[int], None],
        on_come: Callable[[int], None],
    ) -> None:
        """Copy the parts to the targets, both as bytes, on the current stream. `on_begun` is called with the number of
        copies that are queued, `on_come` with the number that have come, after each.
        """
        count = len(self._slots)
        for number in range(len(parts) + count):
            if number >= count and number - count < len(parts):
                self._bring_on(number - count, targets)
                on_come(number - count + 1)
            if number < len(parts):
                slot = number % count
                self._slots[slot][: plan.copies[number].nbytes].copy_(parts[number], non_blocking=True)
                self._events[slot].record()
                on_begun(number + 1)

    def send(self, part: torch.Tensor, target: torch.Tensor) -> None:
        """Copy bytes of the host to the device on the current stream; on return `part` may be changed."""
        slot = self._sent % len(self._slots)
        if self._sent >= len(self._slots):
            self._events[slot].synchronize()
        buffer = self._slots[slot][: part.numel()]
        buffer.copy_(part)
        target.copy_(buffer, non_blocking=True)
        self._events[slot].record()
        self._sent += 1

    def _bring_on(self, number: int, targets: Sequence[torch.Tensor]) -> None:
        slot = number % len(self._slots)
        self._events[slot].synchronize()
        targets[number].copy_(self._slots[slot][: targets[number].numel()])
