"""The steps of a rank whose state lies on an accelerator, copied to its node's vault while training goes on.

`save` queues the copies on a stream of their own and returns. Training's stream waits for nothing but at the gate
(`gate.py`): an optimizer's next step waits for what it changes. A step is sealed when all of it has come and is hashed;
whichever process dies before, the step is not there, and those before it are.

::

    training's stream  | shadows | forward, backward of the next step ....... [gate] optimizer |
    own stream         |         | copies in slices, from the device to the vault ..|
    follower (thread)  |            "n bytes have arrived" ... "all"  -> sealed
    vault              |              hashes behind the copies ........ seals

What it cannot do is `Unfit`, with the reason: the vault then copies within the call, as from a host's memory.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from holdfast.node.affinity import numa
from holdfast.node.frames import WireError
from holdfast.node.machine import Machine
from holdfast.node.vault.messages import PersistTo, ShardName
from holdfast.node.vault.seals import Bytes
from holdfast.trainer.device import StepSkipped, Unfit, gate
from holdfast.trainer.device.adapters import DeviceEvent, accelerator_type, adapter_of
from holdfast.trainer.device.checks import EVERY, INTERVAL_VARIABLE, Check, Samples, Writes, interval, is_checked
from holdfast.trainer.device.copy_plan import SHADOW, Copy
from holdfast.trainer.device.fill_link import FillLink
from holdfast.trainer.device.follower import Follower
from holdfast.trainer.device.guards import SIZES, CopySizes, Guard, WhenBusy, is_logged_now, when_busy
from holdfast.trainer.device.landings import Landings
from holdfast.trainer.device.lay_out import AskPlan, Layout, Shadow, key_of, lay_out
from holdfast.trainer.device.ring import Ring
from holdfast.trainer.device.step_copy import StepCopy
from holdfast.trainer.device.upload import upload
from holdfast.trainer.vault_client.shard_layout import Leaf, OnDevice

LAST_STEP_WAITS_S = 10.0
"""Time for which a process that ends waits for the step under way."""

log = logging.getLogger("holdfast.trainer.checkpoint")


class DeviceCopies:
    def __init__(
        self,
        directory: Path,
        name: ShardName,
        generation: int,
        persist_to: PersistTo | None,
        *,
        shadows_all: bool = False,
        sizes: CopySizes = SIZES,
    ) -> None:
        """`directory` is the node's state directory. Raises Unfit: this process has no accelerator."""
        kind = accelerator_type()
        if kind is None:
            raise Unfit("there is no accelerator")
        self._type = kind
        self._open = partial(FillLink, directory, name, generation, persist_to)
        self._when_busy = when_busy(name.world_size)
        self._shadows_all = shadows_all
        self._sizes = sizes
        self._check_every = interval(os.environ.get(INTERVAL_VARIABLE, str(EVERY)))
        self._adapter = adapter_of(kind)
        self._gate = gate.Gate(self._adapter)
        gate.watch()
        self._landings = Landings(self._adapter)
        self._link: FillLink | None = None
        self._device: torch.device | None = None
        self._numa_node = numa.UNKNOWN
        self._stream: torch.Stream | None = None
        self._follower: Follower | None = None
        self._ring: Ring | None = None
        self._events: list[DeviceEvent] = []
        self._laid: Layout | None = None
        self._described: bytes | None = None
        """The index that the vault has."""
        self._kept = 0
        """Steps since the tensors were laid out."""
        self._last_check: Check | None = None
        self.is_direct = False
        """The last step went straight into the vault's memory, not by a ring."""
        self.skipped = 0
        """Number of steps that were not begun because the one before was not sealed."""
        self.waited = 0
        """Number of steps that waited for that."""
        self._unfit = ""

    def takes(self, leaves: Sequence[Leaf]) -> bool:
        """Return True if these are for `save`."""
        return not self._unfit and any(leaf.tensor.device.type == self._type for leaf in leaves)

    @torch.inference_mode(False)
    @torch.no_grad()
    def save(self, step: int, leaves: Sequence[Leaf], objects: bytes, part_plan: AskPlan | None = None) -> None:
        """Begin to copy the state as it is now, in the order of the current stream; on return training may go on.

        Raises StepSkipped, FillRefused: the step is not kept; Unfit: this way of copying does not work here, and this
        object takes nothing any more; WireError: there is no vault.
        """
        try:
            self._save(step, leaves, objects, part_plan)
        except Unfit as error:
            self._unfit = str(error)
            self.close()
            raise
        except WireError:
            self._drop_link()
            raise

    @torch.inference_mode(False)
    def upload(self, index: bytes, memory: Bytes) -> OnDevice | None:
        """Return what of a shard lay on a device, on the current one; None: nothing, or it cannot be put there."""
        if self._unfit:
            return None
        current = torch.accelerator.current_stream()
        stream = self._stream or torch.Stream(current.device)
        try:
            return upload(index, memory, current.device, stream, lambda: self._ring_of(current.device))
        except RuntimeError as error:
            # The tensors then come one by one, as the script loads them.
            log.warning("the state does not come back to the device in slices: %s", error)
            return None

    @property
    def sealed(self) -> int:
        """The newest step that the vault has sealed of what was begun here."""
        return self._follower.outcome.sealed if self._follower is not None else 0

    def wait_sealed(self, timeout_s: float | None = None) -> bool:
        """Wait until the last step that was begun is sealed or given up; False if it takes longer."""
        return self._follower is None or self._follower.wait_idle(timeout_s)

    def hold_back(self) -> None:
        """Have the current stream wait until all that is being copied may be changed."""
        self._gate.hold_back()

    def take_gate_wait(self) -> tuple[torch.Event, torch.Event] | None:
        """Return the events before and after training's stream waited at the gate; None: it has not since the last
        call.
        """
        return self._gate.take_wait()

    def close(self) -> None:
        """Wait for what is under way, and give everything back."""
        if self._follower is not None:
            self._follower.wait_idle()
            self._follower.close()
            self._follower = None
        self._gate.open()
        self._landings.close()
        self._drop_link()

    def _save(self, step: int, leaves: Sequence[Leaf], objects: bytes, part_plan: AskPlan | None) -> None:
        follower = self._prepare(leaves)
        self._take_turn(step, follower)
        self._learn(follower)
        tensors = list({leaf.memory: leaf.tensor for leaf in leaves}.values())
        laid = self._lay(leaves, tensors, part_plan)
        link = self._connected(laid)
        room, descriptor = link.fill(step, objects)
        try:
            copy = StepCopy(step, link, self._landings.of(descriptor, laid.plan.nbytes), laid.plan)
            self._landings.keep_only(room.files)
            self._begin(copy, laid, tensors)
        except Exception as error:
            self._synchronize()
            link.abandon()
            raise Unfit(f"step {step}: {type(error).__name__}: {error}") from error
        self._kept += 1
        follower.follow(copy)
        if laid.plan.awaited is not None:
            copy.wait_begun(laid.plan.awaited)
            copy.events[laid.plan.awaited].wait()
        if room.is_settled and self._stream is not None:
            self._landings.pin_later(copy.landing, self._stream)
        if room.waits:
            follower.wait_idle()

    def _prepare(self, leaves: Sequence[Leaf]) -> Follower:
        devices = {leaf.tensor.device for leaf in leaves if leaf.tensor.device.type != "cpu"}
        if len(devices) != 1 or (self._device is not None and devices != {self._device}):
            shown = ", ".join(sorted(map(str, devices | ({self._device} if self._device else set()))))
            raise Unfit(f"the state lies on more than one device: {shown}")
        (device,) = devices
        if device != torch.accelerator.current_stream().device:
            raise Unfit(f"the state lies on {device}, which is not the current device")
        if self._follower is None:
            self._device = device
            if (address := self._adapter.pci_address(device)) is not None:
                self._numa_node = numa.node_of_device(address, Machine())
            self._stream = torch.Stream(device)
            self._follower = Follower(self._stream, self._gate.open)
            atexit.register(_wait_for_last, self._follower)
        return self._follower

    def _take_turn(self, step: int, follower: Follower) -> None:
        if follower.is_idle:
            return
        if self._when_busy is WhenBusy.SKIP:
            self.skipped += 1
            if is_logged_now(self.skipped):
                log.warning("step %d is skipped: the one before is not sealed yet (%d times)", step, self.skipped)
            raise StepSkipped(f"step {step}")
        self.waited += 1
        if is_logged_now(self.waited):
            log.warning("step %d waits: the one before is not sealed yet (%d times)", step, self.waited)
        follower.wait_idle()

    def _learn(self, follower: Follower) -> None:
        """Draw conclusions from the steps before."""
        outcome = follower.outcome
        if outcome.failure:
            raise Unfit(outcome.failure)
        if outcome.is_link_lost:
            outcome.is_link_lost = False
            self._link = None
        why = ""
        if outcome.has_late_writer:
            why = "something other than an optimizer changes what optimizers have"
        elif self._gate.has_met_graph:
            why = "an optimizer's step is part of a graph"
        if why and not self._shadows_all:
            log.warning("all of the state is copied on the device first from now on: %s", why)
            self._shadows_all = True
        if self._last_check is not None:
            self._last_check.let_go()

    def _lay(self, leaves: Sequence[Leaf], tensors: Sequence[torch.Tensor], part_plan: AskPlan | None) -> Layout:
        """Return the plan for these tensors: the one of the step before while nothing has moved."""
        assert self._device is not None
        key = key_of(leaves, self._shadows_all, self._sizes.small_bytes)
        if self._laid is None or self._laid.key != key:
            # Its shadows' memory is wanted for the new ones.
            self._laid = self._last_check = None
            self._laid, self._kept = lay_out(key, leaves, tensors, self._device, self._sizes, part_plan), 0
        return self._laid

    def _connected(self, laid: Layout) -> FillLink:
        """Return the connection to the vault, which then knows how this step lies."""
        if self._link is None:
            self._link, self._described = self._open(), None
        if self._described != laid.description:
            self._link.lay(laid.plan.nbytes, laid.description, self._numa_node)
            self._described = laid.description
        return self._link

    def _begin(self, copy: StepCopy, laid: Layout, tensors: Sequence[torch.Tensor]) -> None:
        """Queue everything on the device, in this order: shadows, sums of a check, copies."""
        plan, shadow, own = laid.plan, laid.shadow, self._stream
        assert own is not None
        training = torch.accelerator.current_stream()
        copy.landing.take_host(plan, tensors)
        if shadow is not None:
            shadow.take(tensors)
        copy.earlier, self._last_check = self._last_check, None
        if plan.copies and is_checked(self._kept, self._check_every):
            copy.checked = [*plan.of(Guard.AWAITED), *plan.of(Guard.GATED)]
            parts = [tensors[index] for index in copy.checked]
            copy.check = Check([*parts, shadow.memory] if shadow is not None else parts)
            self._last_check = copy.check
        copy.parts = [_part(it, tensors, shadow) for it in plan.copies]
        if copy.check is None and plan.gate is not None and self._check_every:
            copy.samples = Samples(copy.parts, plan.copies, self._kept)
        copy.writes = Writes([tensors[index] for index in plan.of(Guard.GATED)], copy.parts)
        while len(self._events) < len(plan.marks):
            self._events.append(self._adapter.event(training.device))
        copy.events = self._events[: len(plan.marks)]
        _wait_for_training(own, training)
        self.is_direct = copy.landing.is_pinned
        if self.is_direct:
            self._queue(copy, own, training)
        else:
            copy.ring = self._ring_of(training.device)
        if plan.gate is not None:
            self._gate.shut(copy.events[plan.gate], copy.begun[plan.gate], copy.at_gate)

    def _queue(self, copy: StepCopy, own: torch.Stream, training: torch.Stream) -> None:
        """Queue the copies into pinned memory."""
        plan, targets = copy.plan, copy.landing.targets(copy.plan)
        done = 0
        torch.accelerator.set_stream(own)
        try:
            for mark, event in zip(plan.marks, copy.events, strict=True):
                for number in range(done, mark.copies):
                    targets[number].copy_(copy.parts[number], non_blocking=True)
                event.record()
                done = mark.copies
        finally:
            torch.accelerator.set_stream(training)
        copy.all_begun()

    def _ring_of(self, device: torch.device) -> Ring:
        self._ring = self._ring or Ring(lambda: self._adapter.event(device), self._sizes.slice_bytes)
        return self._ring

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _part(copy: Copy, tensors: Sequence[torch.Tensor], shadow: Shadow | None) -> torch.Tensor:
    """Return what a copy reads, as bytes."""
    if copy.source == SHADOW:
        assert shadow is not None
        return shadow.memory[copy.begin : copy.begin + copy.nbytes]
    flat = tensors[copy.source].detach().view(-1).view(torch.uint8)
    if copy.begin + copy.nbytes <= flat.numel():
        return flat[copy.begin : copy.begin + copy.nbytes]
    # A run goes on into the next tensors of the storage.
    return flat.as_strided((copy.nbytes,), (1,), flat.storage_offset() + copy.begin)


def _wait_for_training(own: torch.Stream, training: torch.Stream) -> None:
    """Have the copies come after all that is queued in training now."""
    own.wait_stream(training)


def _wait_for_last(follower: Follower) -> None:
    follower.wait_idle(LAST_STEP_WAITS_S)
