"""Steps of several chunks, which the vault hashes one by one while others are still being copied; and mutants of the
order in which bytes come, are reported and are hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES
from holdfast.trainer.device.checks import INTERVAL_VARIABLE
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.device.follower import Follower
from holdfast.trainer.device.gate import Gate
from holdfast.trainer.device.guards import CopySizes
from holdfast.trainer.device.landings import Landing, Landings
from holdfast.trainer.device.ring import Ring
from holdfast.trainer.device.step_copy import StepCopy
from holdfast.trainer.vault_client.client import BrokenSeal, VaultClient
from tests import accelerator
from tests.integration.accelerator.copies.kept_steps import name_of, pinned_at_once

SIZES = CopySizes(small_bytes=1 << 10, slice_bytes=1 << 20, mark_bytes=2 << 20)
STEPS = 3
LINK = 100e6
SLOW_LINK = 20e6
"""A step takes 0.4 s: a host that is held up comes to the optimizer before its end all the same."""


class Mutant(Enum):
    WRONG_STREAM = "the copies' own stream waits at the gate, not the optimizer's"
    OPENED_EARLY = "the gate opens before all is copied"
    TOLD_EARLY = "the vault is told of bytes that have not come"
    RECORDED_EARLY = "events are recorded before the copies that they are to show"
    WRONG_ORDER = "slices come in another order than is reported"
    SLOT_EARLY = "a buffer of the ring is moved on before its copy has come"
    SLOT_SWAPPED = "another buffer of the ring is moved on"
    STALE_LANDING = "a step goes to the segment of an earlier one"


OF_RING = frozenset({Mutant.SLOT_EARLY, Mutant.SLOT_SWAPPED})
OF_GATE = frozenset({Mutant.WRONG_STREAM, Mutant.OPENED_EARLY})


class Numbering(torch.optim.Optimizer):
    """Adds one, in a way that torch does not count, as fused optimizers do."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(1.0)


def kept(directory: Path, mutant: Mutant | None = None, *, is_ring: bool = False, seed: int = 1) -> list[int]:
    """Keep each step and read it back when the optimizer's next one is queued; return those that differ."""
    accelerator.seed(seed)
    accelerator.delay(longest_us=100, chance=0.5)
    accelerator.bandwidth(SLOW_LINK if mutant in OF_GATE else LINK)
    accelerator.slice_bytes(256 << 10)
    parameters = [torch.nn.Parameter(each.to("sim")) for each in _numbers()]
    optimizer = Numbering(list(parameters), {})
    way = mock.patch.object(torch.sim, "register_host", None) if is_ring else pinned_at_once()  # type: ignore[attr-defined]
    with mock.patch.dict("os.environ", {INTERVAL_VARIABLE: "0"}), way:
        copies = DeviceCopies(directory, name_of(), 1, None, sizes=SIZES)
        client, reader = VaultClient(directory, name_of(), 1, copies=copies), VaultClient(directory, name_of(), 1)
        torn: list[int] = []
        with mutated(mutant, copies):
            for step in range(1, STEPS + 2):
                optimizer.step()
                if step > 1 and not _is_whole(step - 1, copies, reader):
                    torn.append(step - 1)
                if step <= STEPS:
                    client.save(step, {"parameters": parameters, "step": step})
        reader.close()
        client.close()
        copies.close()
    return torn


def _is_whole(step: int, copies: DeviceCopies, reader: VaultClient) -> bool:
    assert copies.wait_sealed(60) and copies.sealed == step
    try:
        found = reader.restore(SealedStep(generation=1, step=step))
    except BrokenSeal:
        return False
    return all(map(torch.equal, found["parameters"], (each + step for each in _numbers()))) and found["step"] == step


def _numbers() -> Sequence[torch.Tensor]:
    """Return two chunks of numbers, each another one."""
    return torch.arange(2.0 * CHUNK_BYTES // 4).chunk(2)


@contextmanager
def mutated(mutant: Mutant | None, copies: DeviceCopies) -> Iterator[None]:
    follow, report, of = Follower._follow, Follower._report, Landings.of
    first: list[Landing] = []

    def hold_back_own(it: Gate) -> None:
        if it._event is not None:
            with torch.accelerator.device_index(0):
                before = torch.accelerator.current_stream()
                torch.accelerator.set_stream(copies._stream)
                it._event.wait()
                torch.accelerator.set_stream(before)

    def follow_opened(it: Follower, step: StepCopy) -> None:
        it._on_copied()
        follow(it, step)

    def report_more(it: Follower, step: StepCopy, up_to: int) -> None:
        report(it, step, min((each.up_to for each in step.plan.marks if each.up_to > up_to), default=up_to))

    def bring_on(moved: int) -> Callable[[Ring, int, Sequence[torch.Tensor]], None]:
        def bring(it: Ring, number: int, targets: Sequence[torch.Tensor]) -> None:
            slot = (number + moved) % len(it._slots)
            if moved:
                it._events[slot].synchronize()
            targets[number].copy_(it._slots[slot][: targets[number].numel()])

        return bring

    def landing_of_before(it: Landings, descriptor: int, nbytes: int) -> Landing:
        first.append(of(it, descriptor, nbytes))
        return first[0]

    patches = {
        Mutant.WRONG_STREAM: mock.patch.object(Gate, "hold_back", hold_back_own),
        Mutant.OPENED_EARLY: mock.patch.object(Follower, "_follow", follow_opened),
        Mutant.TOLD_EARLY: mock.patch.object(Follower, "_report", report_more),
        Mutant.RECORDED_EARLY: mock.patch.object(DeviceCopies, "_queue", _queue_recorded_early),
        Mutant.WRONG_ORDER: mock.patch.object(DeviceCopies, "_queue", _queue_backwards),
        Mutant.SLOT_EARLY: mock.patch.object(Ring, "_bring_on", bring_on(0)),
        Mutant.SLOT_SWAPPED: mock.patch.object(Ring, "_bring_on", bring_on(1)),
        Mutant.STALE_LANDING: mock.patch.object(Landings, "of", landing_of_before),
    }
    with patches[mutant] if mutant is not None else nullcontext():
        yield


def _queue_backwards(it: DeviceCopies, copy: StepCopy, own: torch.Stream, training: torch.Stream) -> None:
    _queue(copy, own, training, range(len(copy.parts))[::-1])


def _queue_recorded_early(it: DeviceCopies, copy: StepCopy, own: torch.Stream, training: torch.Stream) -> None:
    _queue(copy, own, training, range(len(copy.parts)), ahead=1)


def _queue(copy: StepCopy, own: torch.Stream, training: torch.Stream, order: Sequence[int], ahead: int = 0) -> None:
    """Queue the copies in an order of its own; all but the last event are recorded before the copies `ahead`."""
    targets = copy.landing.targets(copy.plan)
    torch.accelerator.set_stream(own)
    ends = [mark.copies for mark in copy.plan.marks]
    events = iter(zip(ends, copy.events, strict=True))
    end, event = next(events)
    for done, number in enumerate(order, start=1):
        targets[number].copy_(copy.parts[number], non_blocking=True)
        while end is not None and (done + ahead >= end < ends[-1] or done == end):
            event.record()
            end, event = next(events, (None, event))
    torch.accelerator.set_stream(training)
    copy.all_begun()
