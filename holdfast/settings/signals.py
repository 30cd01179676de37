"""Section `[signals]`: what is read from training logs and live output."""

from __future__ import annotations

import msgspec

from holdfast.settings.ranges import require_within


class SignalsPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked at beside training: its logs, and its pace."""

    read_training_logs: bool = True
    """Whether agents read the TensorBoard and W&B files that ranks write."""

    peak_flops: float = 0.0
    """What the device of one rank does a second at most; 0: as the script says, or as its name tells."""

    decline_ratio: float = 0.8
    """A job that trains at this share of its usual pace, or below, has declined."""

    decline_steps: int = 50
    """Steps of which a pace is the median; it has to stay low for twice as many."""

    decline_warm_up_steps: int = 20
    """Steps of each start that say nothing of the pace."""

    def __post_init__(self) -> None:
        require_within(
            self,
            peak_flops=(0, 1e21),
            decline_ratio=(0.01, 0.99, "1 is the usual pace itself"),
            decline_steps=(5, 1_000_000),
            decline_warm_up_steps=(1, 1_000_000, "the first step of a start pays for connections"),
        )
