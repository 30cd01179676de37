"""Section `[signals]`: signals from training logs and live output."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class SignalsPolicy(Section, frozen=True, kw_only=True):
    """Signals beside training: its logs and its pace."""

    read_training_logs: bool = True
    """Agents read the TensorBoard and W&B files that ranks write."""

    peak_flops: Annotated[float, Within(0, 1e21)] = 0.0
    """Peak FLOPs per second of the device of one rank; 0: as the script reports, or by the name of the device."""

    decline_ratio: Annotated[float, Within(0.01, 0.99, "1 is the usual pace itself")] = 0.8
    """Share of its usual pace at or below which a job has declined."""

    decline_steps: Annotated[int, Within(5, 1_000_000)] = 50
    """Steps whose median is the pace; it must stay low for twice as many."""

    decline_warm_up_steps: Annotated[int, Within(1, 1_000_000, "the first step of a start pays for connections")] = 20
    """Steps after each start that are left out of the pace."""
