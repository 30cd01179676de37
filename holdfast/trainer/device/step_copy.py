"""One step on its way from the device to the vault: what training hands to the thread that follows the copies."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from holdfast.trainer.device.adapters import DeviceEvent
from holdfast.trainer.device.checks import Check, Samples, Writes
from holdfast.trainer.device.copy_plan import CopyPlan
from holdfast.trainer.device.fill_link import FillLink
from holdfast.trainer.device.landings import Landing
from holdfast.trainer.device.ring import Ring


class StepCopy:
    def __init__(self, step: int, link: FillLink, landing: Landing, plan: CopyPlan) -> None:
        self.step = step
        self.link = link
        self.landing = landing
        self.plan = plan
        self.parts: Sequence[torch.Tensor] = ()
        """Tensors that are copied, as bytes. They are held: freed memory could be overwritten before it is copied."""
        self.events: list[DeviceEvent] = []
        """Events that are recorded at the marks of the plan, one for each."""
        self.ring: Ring | None = None
        """Ring that the copies go through and have not begun to; None: none."""
        self.begun = [threading.Event() for _ in plan.marks]
        """Flags, one for each mark: its event is recorded."""
        self.writes = Writes(())
        """Writes to gated tensors by others than optimizers."""
        self.check: Check | None = None
        self.checked: Sequence[int] = ()
        """The sources that the check's parts are; after them comes the shadow, if there is one."""
        self.samples: Samples | None = None
        """Blocks to compare with, in steps without a check."""
        self.earlier: Check | None = None
        """The check of a step before, which an optimizer has come to the gate for since."""

    def at_gate(self) -> None:
        """Called when the first optimizer reaches the gate."""
        self.writes.at_gate()
        if self.check is not None:
            self.check.at_gate()

    def wait_begun(self, mark: int) -> None:
        """Wait until the mark's event is recorded, and those before."""
        self.begun[mark].wait()

    def all_begun(self) -> None:
        for each in self.begun:
            each.set()

    def landed(self) -> list[torch.Tensor]:
        """Return what came of the check's parts."""
        data, plan = self.landing.data, self.plan
        found = [data[plan.offsets[it] : plan.offsets[it] + self._nbytes(it)] for it in self.checked]
        if plan.shadow_begin < plan.nbytes:
            found.append(data[plan.shadow_begin : plan.nbytes])
        return found

    def _nbytes(self, source: int) -> int:
        return self.plan.sizes[source]
