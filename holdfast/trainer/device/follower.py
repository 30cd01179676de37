"""The thread that follows the copies of each step to the host, reports how far they are, and has the step sealed.

It waits for the device's events without holding the interpreter, about once for each 64 MiB. Whatever happens to the
vault, it goes on until no copy is under way: only then is memory given back, and the next step may begin.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

import torch

from holdfast.node.frames import WireError
from holdfast.trainer.device import FillRefused
from holdfast.trainer.device.adapters import DeviceEvent
from holdfast.trainer.device.step_copy import StepCopy

WRITTEN_TO = "something other than an optimizer changed an optimizer's tensors while they were copied"

FEW = 4
"""Number of steps within which a second write to a step while it is copied counts: later steps are copied aside."""

log = logging.getLogger("holdfast.trainer.checkpoint")


class Outcome:
    """Results of the steps that have ended; read while none is under way."""

    def __init__(self) -> None:
        self.sealed = 0
        """The newest step that is sealed."""
        self.has_late_writer = False
        """Something changed in an optimizer's tensor before the optimizer did."""
        self.is_link_lost = False
        self.failure = ""
        """Why copies cannot be made in this way any more."""


class Follower:
    def __init__(self, stream: torch.Stream, on_copied: Callable[[], None]) -> None:
        """`on_copied` is called when no copy of a step is under way any more, before the step is sealed."""
        self.outcome = Outcome()
        self._written_to: deque[bool] = deque(maxlen=FEW)
        """For each of the last steps: others than optimizers wrote to it."""
        self._stream = stream
        self._on_copied = on_copied
        self._steps: queue.SimpleQueue[StepCopy | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="holdfast-device-copies", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until the step before is sealed or given up."""
        return self._idle.wait(timeout_s)

    def follow(self, step: StepCopy) -> None:
        self._idle.clear()
        self._steps.put(step)

    def close(self) -> None:
        """End the thread when it is idle."""
        self._steps.put(None)

    def _run(self) -> None:
        torch.accelerator.set_stream(self._stream)
        with torch.no_grad():
            while (step := self._steps.get()) is not None:
                try:
                    self._follow(step)
                except Exception as error:  # noqa: BLE001 - any error of the device's ends this way of copying
                    self.outcome.failure = f"{type(error).__name__}: {error}"
                    self.outcome.is_link_lost = True
                    step.link.close()
                finally:
                    step.all_begun()
                    step.parts = ()
                    self._on_copied()
                    del step
                    self._idle.set()

    def _follow(self, step: StepCopy) -> None:
        try:
            if step.ring is not None:
                self._copy(step)
            else:
                for event, mark in zip(step.events, step.plan.marks, strict=True):
                    self._wait(event)
                    self._report(step, mark.up_to)
        finally:
            # Also when something failed: a copy that is under way needs its memory.
            self._wait(self._stream)
        reason = self._why_not(step)
        step.parts = ()
        self._on_copied()
        if self.outcome.is_link_lost:
            return
        try:
            if reason:
                log.warning("step %d is not kept in memory: %s", step.step, reason)
                step.link.abandon()
            else:
                step.link.finish(step.plan.nbytes)
                self.outcome.sealed = step.step
        except FillRefused as error:
            log.warning("step %d is not kept in memory: %s", step.step, error)
        except WireError as error:
            self._lose(step, error)

    def _wait(self, end: DeviceEvent | torch.Stream) -> None:
        """Wait until the device has come there."""
        end.synchronize()

    def _copy(self, step: StepCopy) -> None:
        """Do the copies by the ring."""
        at = {mark.copies: index for index, mark in enumerate(step.plan.marks)}

        def begun(copies: int) -> None:
            if (index := at.get(copies)) is not None:
                step.events[index].record()
                step.begun[index].set()

        def come(copies: int) -> None:
            if (index := at.get(copies)) is not None:
                self._report(step, step.plan.marks[index].up_to)

        assert step.ring is not None
        step.ring.copy(step.plan, step.parts, step.landing.targets(step.plan), begun, come)

    def _report(self, step: StepCopy, up_to: int) -> None:
        if self.outcome.is_link_lost or up_to >= step.plan.nbytes:
            return  # the last is reported when the step is to be sealed
        try:
            step.link.filled(up_to)
        except WireError as error:
            self._lose(step, error)

    def _lose(self, step: StepCopy, error: WireError) -> None:
        log.warning("step %d is not kept in memory: the vault is gone: %s", step.step, error)
        self.outcome.is_link_lost = True
        step.link.close()

    def _why_not(self, step: StepCopy) -> str:
        """Return why a step must not be sealed; "": it may."""
        was_written_to = any(self._written_to)
        self._written_to.append(step.writes.were_made())
        if step.earlier is not None and step.earlier.changed():
            self.outcome.has_late_writer = True
            return "something other than an optimizer changes an optimizer's tensors between steps"
        if self._written_to[-1]:
            # Once in a while it costs a step. In each step none would be left, in every second one only half.
            self.outcome.has_late_writer |= was_written_to
            return WRITTEN_TO
        if step.check is None:
            if step.samples is None or not step.samples.differ(step.landing.data):
                return ""
            self.outcome.has_late_writer = True
            return WRITTEN_TO
        differing = step.check.differing(step.landed())
        if not differing:
            return ""
        if any(at >= len(step.checked) for at in differing):
            self.outcome.failure = "what came from the device is not what it had"
            return self.outcome.failure
        self.outcome.has_late_writer = True
        return WRITTEN_TO
