"""Checkpoints of state on an accelerator: copied beside training, straight into memory that outlives the rank.

`copies.py` is the entry, and loaded only where there is an accelerator. `guards.py` and `copy_plan.py` decide, the
other files act.
"""

from __future__ import annotations

MODE_VARIABLE = "HOLDFAST_DEVICE_COPIES"
BESIDE, SHADOWS, WITHIN = "beside", "shadows", "within"
"""Its values: copies beside training; of everything copied on the device first; within the call, as without this."""


class Unfit(RuntimeError):
    """This state, or this machine, cannot be copied beside training; the message is the reason."""


class StepSkipped(RuntimeError):
    """The step before is not sealed yet, and nothing waits for it. It is counted, and logged now and then."""


class FillRefused(RuntimeError):
    """The vault cannot keep the step; the message is its reason."""


def has_accelerator() -> bool:
    """Return True if this process can use an accelerator; it need not have begun to."""
    import torch

    return hasattr(torch, "accelerator") and torch.accelerator.is_available()
