"""The weights with which a job makes its first step. A later generation that begins with the same ones has restored
nothing, however its script may restore; one that begins with others may have.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from holdfast.trainer.steps.notes import note_folder
from holdfast.trainer.steps.step_start import Weights, generation

PARAMETERS_READ = 32
ELEMENTS_READ = 8
"""Number of elements of each, spread over it."""
UNMOVED = "unmoved"
"""Follows a digest that the first steps have not changed."""


def weights_of(optimizer: Any) -> str | None:
    """Return a digest of what the optimizer is about to change; None if that cannot be read now."""
    import torch

    from holdfast.trainer.device.adapters import adapter_of

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    read = []
    for parameter in parameters[:: max(1, len(parameters) // PARAMETERS_READ)][:PARAMETERS_READ]:
        local = getattr(parameter, "_local_tensor", parameter).detach()
        if local.device.type != "cpu" and adapter_of(local.device.type).is_capturing():
            return None
        if local.numel() and local.is_contiguous():
            elements = local.view(-1)[:: max(1, local.numel() // ELEMENTS_READ)][:ELEMENTS_READ]
            read.append(elements.to(torch.float64))
    if not read:
        return None
    numbers = torch.cat([elements.to(read[0].device) for elements in read]).cpu().numpy()
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()


def compared(digest: str) -> Weights | None:
    """Compare with those of this rank's first step in the job; None if this is the first one, which is noted."""
    own = _file()
    if own is None:
        return None
    try:
        if generation() > 1:
            first, _, mark = own.read_text().partition(" ")
            if first != digest:
                return Weights.OTHER
            return Weights.UNMOVED if mark == UNMOVED else Weights.FIRST
    except FileNotFoundError:
        pass
    own.parent.mkdir(parents=True, exist_ok=True)
    part = own.with_suffix(f".{os.getpid()}")
    part.write_text(digest)
    part.replace(own)
    return None


def note_unmoved(digest: str) -> None:
    """Note that the first steps have left the digest of the first weights as it was: it shows nothing later."""
    own = _file()
    if own is not None and own.exists() and own.read_text() == digest:
        own.write_text(f"{digest} {UNMOVED}")


def _file() -> Path | None:
    folder = note_folder()
    return None if folder is None else folder / f"first-weights-{int(os.environ['RANK']):05d}"
