"""This process's ledger, and what a script notes in it: steps and phases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsFloat, SupportsInt

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import Source
from holdfast.trainer.steps.step_start import StepStart

if TYPE_CHECKING:
    from holdfast.trainer.hooks.ring_writer import RingWriter
    from holdfast.trainer.replay_run import Recorder


class _Binding:
    """The ledger and the ring of collectives of this process, if it is a rank that trains.

    `explicit` once the script counts its own steps. `unsettled_ns` is the time of the first optimizer step: whether it
    is a step of the job is known only when the script calls `step` for it, or steps the optimizer again without having
    done so. `recorder` is that of a rank that replays. `framework` is the one that counts the steps; "": none, and
    `trained_before` the number of steps before its present training, if that began again at 0.
    """

    def __init__(self) -> None:
        self.ledger: LedgerWriter | None = None
        self.ring: RingWriter | None = None
        self.recorder: Recorder | None = None
        self.explicit = False
        self.unsettled_ns: tuple[int, int] | None = None
        self.framework = ""
        self.trained_before = 0
        self.start = StepStart()
        self.is_begun = False
        self.is_start_known = True
        """True if it is known at which step of the job this process began to count."""

    def settle(self) -> None:
        """Complete the first optimizer step if the script does not count by itself: it was a step of the job."""
        if self.ledger is not None and self.unsettled_ns is not None and not self.explicit:
            self.begin()
            self.ledger.complete_step(at_ns=self.unsettled_ns)
        self.unsettled_ns = None

    def begin(self, source: Source = Source.NONE) -> None:
        """Before the first step: note where steps begin, as far as what the script has restored shows it."""
        if self.ledger is None or self.is_begun:
            return
        self.is_begun = True
        start = self.start.decide()
        counted = source or start.source
        kind = start.source if start.source is Source.RESTORED else counted
        self.is_start_known = start.is_known
        self.ledger.begin_steps(start.done, kind, start.name, is_known=start.is_known)

    def steps_completed(self) -> int | None:
        """Return the number of steps that the job has completed, where optimizers count them; None if that is not
        known, or a better source counts.
        """
        if self.ledger is None or self.explicit or self.framework:
            return None
        if self.ledger.steps_done:
            return self.ledger.step + 1 if self.is_start_known else None
        start = self.start.decide()
        return start.done + (self.unsettled_ns is not None) if start.is_known else None

    def begin_counting(self, framework: str, done: int, name: str, *, is_known: bool = True) -> None:
        """Let a framework count from now on: optimizers are not asked any more."""
        if self.ledger is not None and not self.explicit:
            self.framework, self.unsettled_ns, self.is_begun = framework, None, True
            self.ledger.begin_steps(done + 1, Source.FRAMEWORK, name, is_known=is_known)


binding = _Binding()


def bind(ledger: LedgerWriter, ring: RingWriter | None = None) -> None:
    binding.ledger = ledger
    binding.ring = ring
    binding.explicit = binding.is_begun = False
    binding.is_start_known = True
    binding.unsettled_ns = None
    binding.framework = ""
    binding.trained_before = 0
    binding.start = StepStart()


def _unbind() -> None:
    binding.ledger = binding.ring = binding.recorder = None


# A data-loader worker is a fork of the rank: two writers would spoil the record.
os.register_at_fork(after_in_child=_unbind)


def step(
    step: int | None = None,
    loss: SupportsFloat | None = None,
    grad_norm: SupportsFloat | None = None,
    tokens: SupportsInt | None = None,
) -> None:
    """Report that a step is completed.

    Without `step` it is the one after the last; the first of a generation is the one that was restored, as far as that
    shows (docs/steps.md), or 0. `tokens` are those of all ranks
    together, whichever rank reports them. `loss` and `grad_norm` may be tensors: reading one that lies on an
    accelerator waits for it.
    """
    ledger, recorder = binding.ledger, binding.recorder
    if ledger is None and recorder is None:
        return
    loss_value = None if loss is None else _number(loss)
    norm_value = None if grad_norm is None else _number(grad_norm)
    if recorder is not None:
        recorder.step_reported(step, loss_value, norm_value)
    if ledger is not None:
        binding.explicit = True
        if not ledger.steps_done:
            if step is None:
                binding.begin(Source.SCRIPT)
            else:
                ledger.begin_steps(step, Source.SCRIPT)
        ledger.complete_step(step, loss_value, norm_value, None if tokens is None else int(tokens))
        if binding.ring is not None and binding.ring.hold_wanted:
            from holdfast.trainer.hooks.holding import wait_if_held

            wait_if_held()


def resumed(step: int) -> None:
    """Note that the script goes on from this completed step: steps without numbers are counted from there."""
    if binding.recorder is not None:
        binding.recorder.resumed(step)
    if binding.ledger is not None and not binding.explicit and not binding.framework:
        binding.is_begun = True
        binding.ledger.begin_steps(step, Source.RESTORED, "the Checkpointer")


def _number(value: SupportsFloat) -> float:
    # Reading a tensor that gradients flow through as a number would warn in the user's log.
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark the block as this phase (`holdfast.node.ledger.ledger_file.Phase`); other names are cut at 28 bytes."""
    ledger = binding.ledger
    if ledger is None:
        yield
        return
    before = ledger.enter_phase(name)
    try:
        yield
    finally:
        ledger.enter_phase(before)
