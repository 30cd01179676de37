"""The description of a model that a script may report once, so that throughput can be given as MFU."""

from __future__ import annotations

import math
import sys

from holdfast.engines.hardware.peak_flops import peak_flops as peak_of
from holdfast.trainer.report import report


class UnusableModel(ValueError):
    """A number that no model or device can have."""


def describe_model(*, flops_per_token: float, peak_flops: float | None = None) -> None:
    """Report the operations for one token: all ranks together, forward and backward (about six times the parameters in
    use). The job's MFU is known if `trainer.step` also gets `tokens`.

    `peak_flops` is the most that one rank's device can do in a second; without it, it is looked up by the name of the
    CUDA device. Outside Holdfast this does nothing.

    Raises:
        UnusableModel: a number that is not above 0 and finite.
    """
    device = _device()
    peak = peak_of(device) if peak_flops is None else peak_flops
    for name, number in (("flops_per_token", flops_per_token), ("peak_flops", 1.0 if peak is None else peak)):
        if not (math.isfinite(number) and number > 0):
            raise UnusableModel(f"{name} = {number}: give a number above 0")
    report("model", flops_per_token=float(flops_per_token), peak_flops=peak, device=device)


def _device() -> str:
    # Only a script that has initialised CUDA is asked for its devices: asking would initialise it.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_device_name())
