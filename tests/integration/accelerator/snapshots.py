"""A path of snapshots with every wait that it needs, and its mutants: the same with one of them left out.

The path: a stream of its own waits for training's stream, copies to pinned memory and records an event. What an
optimizer changes stays until its next step, which waits for the event on the device. What other code may change is
copied on the device first. The host reads once the event has come. What was copied stays referenced until then.

Delays alone do not show a missing wait where the host is held up for longer than a step's copies take. So a schedule
keeps one of the two streams back until the other one has done what it would have had to wait for.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests import accelerator

WIDTH, BATCH, STEPS = 96, 8, 6


class Mutant(Enum):
    WHOLE = "nothing is left out"
    NO_GATE = "the optimizer does not wait for the copies"
    NO_WAIT_FOR_TRAINING = "the copying stream does not wait for training's"
    READ_TOO_EARLY = "the host reads before the event"
    FREED_EARLY = "no reference is held while a tensor is copied"
    NO_SHADOW = "what is changed outside an optimizer is copied without a shadow"


class Schedule(Enum):
    LATE_COPIES = "a step's copies begin once the next one has done what needs no wait for them"
    LATE_TRAINING = "a step is trained once its copies have done what needs no wait for it"


SHOWING = {Mutant.NO_WAIT_FOR_TRAINING: Schedule.LATE_TRAINING}
"""Schedules that show a mutant, if not late copies."""


class Snapshot:
    """One step's copies in pinned memory, the truth beside it, and what the host read."""

    def __init__(self, truth: list[torch.Tensor], copies: list[torch.Tensor], done: torch.Event) -> None:
        self.truth = truth
        self.copies = copies
        self.done = done
        self.held: list[torch.Tensor] = []
        self.read: list[torch.Tensor] = []

    def seal(self, too_early: bool) -> None:
        if not too_early:
            self.done.synchronize()
        self.read = [copy.clone() for copy in self.copies]
        self.held.clear()

    def is_torn(self) -> bool:
        """Return True if what was read is not what the tensors were, in the order of training, at the snapshot."""
        pairs = zip(self.truth, self.read, strict=True)
        return not all(torch.equal(true.cpu(), read) for true, read in pairs)


class Snapshots:
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._stream = torch.Stream("sim")
        self._last: Snapshot | None = None
        self._hook = register_optimizer_step_pre_hook(self._gate)

    def close(self) -> None:
        self._hook.remove()

    @property
    def stream(self) -> torch.Stream:
        return self._stream

    def take(self, gated: list[torch.Tensor], others: list[torch.Tensor]) -> Snapshot:
        """Copy tensors that an optimizer changes, and others; return without waiting."""
        training = torch.accelerator.current_stream()
        truth = [tensor.clone() for tensor in (*gated, *others)]
        if self._mutant is not Mutant.NO_SHADOW:
            others = [tensor.clone() for tensor in others]
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in (*gated, *others)]
        if self._mutant is not Mutant.NO_WAIT_FOR_TRAINING:
            self._stream.wait_stream(training)
        with self._stream:
            for copy, tensor in zip(copies, (*gated, *others), strict=True):
                copy.copy_(tensor, non_blocking=True)
            done = self._stream.record_event()
        self._last = Snapshot(truth, copies, done)
        if self._mutant is not Mutant.FREED_EARLY:
            self._last.held.extend((*gated, *others))
        return self._last

    def _gate(self, *_: object) -> None:
        if self._last is not None and self._mutant is not Mutant.NO_GATE:
            torch.accelerator.current_stream().wait_event(self._last.done)


def torn(
    mutant: Mutant, seed: int, steps: int = STEPS, synchronous: bool = False, schedule: Schedule | None = None
) -> int:
    """Train, take a snapshot of each step, seal each one a step later; return how many are torn.

    `schedule` None: the one that shows the mutant. None is followed if the device is `synchronous`.
    """
    accelerator.synchronous(synchronous)
    accelerator.seed(seed)
    # Training's stream is slower than the host that queues for it, so that what does not wait for it is early.
    accelerator.delay(longest_us=400, chance=0.5)
    # The copies of a step take longer than its forward and backward: else none would still run at the next update.
    accelerator.bandwidth(10e6)
    accelerator.slice_bytes(16 << 10)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to("sim")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    snapshots, taken = Snapshots(mutant), list[Snapshot]()
    followed = None if synchronous else schedule or SHOWING.get(mutant, Schedule.LATE_COPIES)
    training = torch.accelerator.current_stream()
    late_copies, late_training = ExitStack(), ExitStack()
    try:
        for _ in range(steps):
            # Before the forward, so before the optimizer's gate too: nothing but a shadow helps.
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)
            model(torch.randn(BATCH, WIDTH, device="sim")).square().mean().backward()
            training.synchronize()
            if followed is Schedule.LATE_TRAINING:
                late_training.enter_context(accelerator.held(training))
            optimizer.step()
            optimizer.zero_grad()
            if followed is Schedule.LATE_COPIES and mutant is Mutant.NO_GATE:
                training.synchronize()
            late_copies.close()
            if followed is Schedule.LATE_COPIES:
                late_copies.enter_context(accelerator.held(snapshots.stream))
            taken.append(snapshots.take(_owned(model, optimizer), average))
            if mutant is Mutant.NO_WAIT_FOR_TRAINING:
                taken[-1].done.synchronize()
            late_training.close()
            if mutant is Mutant.READ_TOO_EARLY:
                taken[-1].seal(too_early=True)
            elif len(taken) > 1:
                taken[-2].seal(too_early=False)
    finally:
        late_training.close()
        late_copies.close()
        snapshots.close()
    if mutant is not Mutant.READ_TOO_EARLY:
        taken[-1].seal(too_early=False)
    torch.accelerator.synchronize()
    return sum(snapshot.is_torn() for snapshot in taken)


def _owned(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [*(parameter.detach() for parameter in model.parameters()), *moments]
