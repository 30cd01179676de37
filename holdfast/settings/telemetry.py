"""Section `[telemetry]`: what is measured of ranks beside training, and when it is an anomaly."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class TelemetryPolicy(Section, frozen=True, kw_only=True):
    """What is measured of ranks beside training, and when it counts as an anomaly (TRANSOM §IV-B). It evicts nobody."""

    every_s: Annotated[float, Within(0, 3600.0)] = 5.0
    """How often agents measure; 0: not at all. A model is good for the interval that it was trained with."""

    window: Annotated[int, Within(8, 10_000)] = 24
    """Measurements that are looked at together."""

    length: Annotated[int, Within(2, 1000)] = 6
    """The newest of them, which are judged."""

    level_after: Annotated[int, Within(2, 10_000)] = 24
    """Measurements of a generation that say what is usual for the job; until then it is not judged."""

    error_window_s: Annotated[float, Within(1, 86400.0)] = 60.0
    """Lines of trouble are counted over this long."""

    error_lines_max: Annotated[int, Within(0, 1_000_000)] = 20
    """More of them are an anomaly."""

    again_after_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 300.0
    """The same anomaly of a job is said again after this long."""

    retrain_every_s: Annotated[float, Within(0, 365 * 86400.0)] = 86400.0
    """How often the historian learns a new model from what it has recorded; 0: never."""

    learn_from_s: Annotated[float, Within(60, 365 * 86400.0)] = 172800.0
    """How far back it looks for that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.length > self.window:
            raise ValueError(f"length = {self.length}: at most half of window = {self.window}")
