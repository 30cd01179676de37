"""Section `[signals]`: what is read from training logs and live output."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class SignalsPolicy(Section, frozen=True, kw_only=True):
    """What is looked at beside training: its logs, and its pace."""

    read_training_logs: bool = True
    """Whether agents read the TensorBoard and W&B files that ranks write."""

    peak_flops: Annotated[float, Within(0, 1e21)] = 0.0
    """What the device of one rank does a second at most; 0: as the script says, or as its name tells."""

    decline_ratio: Annotated[float, Within(0.01, 0.99, "1 is the usual pace itself")] = 0.8
    """A job that trains at this share of its usual pace, or below, has declined."""

    decline_steps: Annotated[int, Within(5, 1_000_000)] = 50
    """Steps of which a pace is the median; it has to stay low for twice as many."""

    decline_warm_up_steps: Annotated[int, Within(1, 1_000_000, "the first step of a start pays for connections")] = 20
    """Steps of each start that say nothing of the pace."""
