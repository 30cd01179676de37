"""The engines of the analyzer: a new one is added here and nowhere else."""

from __future__ import annotations

from holdfast.settings.load import Settings
from holdfast_analyzer.engines.bad_numbers.bad_numbers_engine import BadNumbersEngine
from holdfast_analyzer.engines.engine import Engine
from holdfast_analyzer.engines.hang.hang_engine import HangEngine
from holdfast_analyzer.engines.slow.slow_engine import SlowEngine
from holdfast_analyzer.engines.step_time import StepTimeEngine
from holdfast_analyzer.engines.telemetry.telemetry_engine import TelemetryEngine
from holdfast_analyzer.engines.throughput import ThroughputEngine


def engines_of(settings: Settings) -> tuple[Engine, ...]:
    """Return all engines. Their order is that of their events in a common effect."""
    step_time = StepTimeEngine()
    return (
        step_time,
        BadNumbersEngine(settings.corruption),
        ThroughputEngine(settings.signals),
        SlowEngine(settings.slow),
        # A hang is judged by the pace of the job.
        HangEngine(settings.hang, step_time.long_step_s),
        TelemetryEngine(settings.telemetry),
    )
