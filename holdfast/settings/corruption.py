"""Section `[corruption]`: when losses and gradient norms count as spoiled."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class CorruptionPolicy(Section, frozen=True, kw_only=True):
    """What losses and gradient norms say of the training's health: when a step is clean, and when it is spoiled."""

    certified_after_steps: Annotated[int, Within(1, 1_000_000)] = 10
    """Clean steps that must follow before what was before them counts as clean."""

    jump_factor: Annotated[float, Within(1.01, 1e6, "numbers move around their level")] = 5.0
    """How many times above its running level a number is a sign of corruption."""

    loss_jump_steps: Annotated[int, Within(1, 1_000_000)] = 3
    """Steps that a loss must stay there to be a fault; one that is not finite is a fault at once."""

    grad_norm_steps: Annotated[int, Within(1, 1_000_000)] = 10
    """Steps that a gradient norm must be that high or not finite to be a fault: loss scaling overflows now and then."""
