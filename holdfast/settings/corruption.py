"""Section `[corruption]`: when losses and gradient norms count as spoiled."""

from __future__ import annotations

import msgspec

from holdfast.settings.ranges import require_within


class CorruptionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What losses and gradient norms say of the training's health: when a step is clean, and when it is spoiled."""

    certified_after_steps: int = 10
    """Clean steps that must follow before what was before them counts as clean."""

    jump_factor: float = 5.0
    """How many times above its running level a number is a sign of corruption."""

    loss_jump_steps: int = 3
    """Steps that a loss must stay there to be a fault; one that is not finite is a fault at once."""

    grad_norm_steps: int = 10
    """Steps that a gradient norm must be that high or not finite to be a fault: loss scaling overflows now and then."""

    def __post_init__(self) -> None:
        require_within(
            self,
            certified_after_steps=(1, 1_000_000),
            jump_factor=(1.01, 1e6, "numbers move around their level"),
            loss_jump_steps=(1, 1_000_000),
            grad_norm_steps=(1, 1_000_000),
        )
