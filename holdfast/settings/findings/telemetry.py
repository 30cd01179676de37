"""Section `[telemetry]`: measurements of ranks beside training, and limits of anomalies."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class TelemetryPolicy(Section, frozen=True, kw_only=True):
    """Telemetry of ranks beside training, and its anomalies (TRANSOM §IV-B). It evicts no node."""

    every_s: Annotated[float, Within(0, 3600.0)] = 5.0
    """Interval of measurements; 0: none. A model fits only the interval that it was trained with."""

    devices: bool = True
    """Measure the activity of GPUs and RDMA ports as well, also in each trace of a job."""

    dcgm: str = "127.0.0.1:5555"
    """Address of DCGM's host engine, which is asked where NVML does not measure tensor cores; "": it is not asked."""

    window: Annotated[int, Within(8, 10_000)] = 24
    """Measurements that are judged together."""

    length: Annotated[int, Within(2, 1000)] = 6
    """The newest of them, which are compared with the others."""

    level_after: Annotated[int, Within(2, 10_000)] = 24
    """Measurements of a generation that define the usual level of the job; it is not judged before."""

    error_window_s: Annotated[float, Within(1, 86400.0)] = 60.0
    """Time over which lines of trouble are counted."""

    error_lines_max: Annotated[int, Within(0, 1_000_000)] = 20
    """Lines in that time; more are an anomaly."""

    again_after_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 300.0
    """Interval at which the same anomaly of a job is published again."""

    retrain_every_s: Annotated[float, Within(0, 365 * 86400.0)] = 86400.0
    """Interval at which the historian trains a new model from recorded telemetry; 0: never."""

    learn_from_s: Annotated[float, Within(60, 365 * 86400.0)] = 172800.0
    """Age of the oldest telemetry that it trains on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.length > self.window:
            raise ValueError(f"length = {self.length}: at most half of window = {self.window}")
