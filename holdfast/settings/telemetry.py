"""Section `[telemetry]`: what is measured of ranks beside training, and when it is an anomaly."""

from __future__ import annotations

import msgspec

from holdfast.settings.ladder import SETTLED_S_MAX
from holdfast.settings.ranges import require_within


class TelemetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured of ranks beside training, and when it counts as an anomaly (TRANSOM §IV-B). It evicts nobody."""

    every_s: float = 5.0
    """How often agents measure; 0: not at all. A model is good for the interval that it was trained with."""

    window: int = 24
    """Measurements that are looked at together."""

    length: int = 6
    """The newest of them, which are judged."""

    level_after: int = 24
    """Measurements of a generation that say what is usual for the job; until then it is not judged."""

    error_window_s: float = 60.0
    """Lines of trouble are counted over this long."""

    error_lines_max: int = 20
    """More of them are an anomaly."""

    again_after_s: float = 300.0
    """The same anomaly of a job is said again after this long."""

    retrain_every_s: float = 86400.0
    """How often the historian learns a new model from what it has recorded; 0: never."""

    learn_from_s: float = 172800.0
    """How far back it looks for that."""

    def __post_init__(self) -> None:
        require_within(
            self,
            every_s=(0, 3600.0),
            window=(8, 10_000),
            length=(2, 1000),
            level_after=(2, 10_000),
            error_window_s=(1, 86400.0),
            error_lines_max=(0, 1_000_000),
            again_after_s=(1, SETTLED_S_MAX),
            retrain_every_s=(0, 365 * 86400.0),
            learn_from_s=(60, 365 * 86400.0),
        )
        if 2 * self.length > self.window:
            raise ValueError(f"length = {self.length}: at most half of window = {self.window}")
