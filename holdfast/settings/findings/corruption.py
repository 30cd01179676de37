"""Section `[corruption]`: limits of losses and gradient norms."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class CorruptionPolicy(Section, frozen=True, kw_only=True):
    """Conditions for steps to count as clean or spoiled, by losses and gradient norms."""

    certified_after_steps: Annotated[int, Within(1, 1_000_000)] = 10
    """Clean steps after which the steps before them count as clean."""

    jump_factor: Annotated[float, Within(1.01, 1e6, "numbers move around their level")] = 5.0
    """Multiple of its running level from which a number counts as corrupt."""

    loss_jump_steps: Annotated[int, Within(1, 1_000_000)] = 3
    """Steps for which a loss must stay there to be a fault; one that is not finite is a fault at once."""

    grad_norm_steps: Annotated[int, Within(1, 1_000_000)] = 10
    """Steps for which a gradient norm must be that high or not finite to be a fault: loss scaling overflows now and
    then."""
