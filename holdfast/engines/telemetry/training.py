"""Training of a model on windows of healthy training, and its test on unseen windows. Pure.

TRANSOM §IV-B: a model that fails its test is discarded. If the record has few real anomalies, they are injected:
healthy windows in whose end ranks stop, slow down, leak memory, lose their network or read without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import numpy as np

from holdfast.engines.telemetry.anomaly_vote import vote
from holdfast.engines.telemetry.lof import crowd_of
from holdfast.engines.telemetry.model import (
    DetectorSet,
    Model,
    ModelScores,
    RankScores,
    StoredArray,
    Thresholds,
    WindowSettings,
)
from holdfast.engines.telemetry.neighbor_profile import bags_of, subsequences
from holdfast.engines.telemetry.windows import METRICS, OCTAVES_MAX, Floats, Window

WINDOWS_MIN = 20
"""Healthy windows below which nothing is learned: thresholds would reflect only a few moments."""

CALIBRATED_ON = 0.25
"""Share of windows for calibrating thresholds; the others form the model."""

QUANTILE, MARGIN = 0.999, 1.3
LOF_MIN, OCTAVES_MIN = 1.5, 0.25
"""Lower limits of thresholds: a job that never varied does not show what is usual."""

ACCURACY_MIN = PRECISION_MIN = 0.95
RECALL_MIN = 0.9


class NothingToLearn(ValueError):
    """Too few windows; the message names what is missing."""


def train(
    windows: Sequence[Window],
    settings: WindowSettings,
    version: str,
    made_at: datetime,
    jobs: Sequence[str],
    seed: int = 0,
) -> Model:
    """Train a model on healthy windows: in octaves, filled, in order of time. Raises NothingToLearn if too few."""
    if len(windows) < WINDOWS_MIN:
        raise NothingToLearn(
            f"{len(windows)} windows of healthy training are recorded, and {WINDOWS_MIN} are needed: about "
            f"{WINDOWS_MIN * settings.window * settings.interval_s / 60:.0f} minutes of jobs that ran undisturbed"
        )
    every = round(1 / CALIBRATED_ON)
    known = [window for number, window in enumerate(windows) if number % every]
    unseen = windows[::every]
    generator = np.random.default_rng(seed)
    points = np.concatenate([window.values.transpose(0, 2, 1).reshape(-1, len(METRICS)) for window in known])
    stretches = np.concatenate([subsequences(window.values, settings.length) for window in known])
    crowd = crowd_of(_some(points, settings.crowd, generator), settings.crowd_neighbours)
    bags = bags_of(stretches, settings.bags, settings.bag, seed)
    detectors = DetectorSet(settings, crowd, bags)
    thresholds = _thresholds([detectors.score(window) for window in unseen])
    return Model(
        version=version,
        made_at=made_at,
        settings=msgspec.structs.replace(settings, crowd_neighbours=crowd.neighbours),
        thresholds=thresholds,
        crowd_points=StoredArray.of(crowd.points),
        crowd_reach=StoredArray.of(crowd.reach),
        crowd_density=StoredArray.of(crowd.density),
        bags=StoredArray.of(bags),
        windows=len(windows),
        jobs=tuple(jobs),
    )


def evaluate(model: Model, healthy: Sequence[Window], recorded: Sequence[Window]) -> ModelScores:
    """Test a model on unseen windows. `recorded` windows end in an incident."""
    detectors = DetectorSet.of(model)
    generator = np.random.default_rng(1)

    def alarms(windows: Sequence[Window]) -> int:
        return sum(vote(window.ranks, detectors.score(window), model.thresholds).is_anomaly for window in windows)

    made = [
        inject(window, generator, model.settings.length)
        for window in healthy
        for inject in ANOMALIES.values()
        if len(window.ranks) > 2
    ]
    return ModelScores(
        healthy=len(healthy),
        false_alarms=alarms(healthy),
        injected=len(made),
        injected_found=alarms(made),
        recorded=len(recorded),
        recorded_found=alarms(recorded),
    )


def why_discarded(scores: ModelScores) -> str:
    """Return why a model with these scores is not used; "" if it is."""
    if not scores.healthy or not scores.injected + scores.recorded:
        return "there was nothing to test it on"
    for name, value, least in (
        ("accuracy", scores.accuracy, ACCURACY_MIN),
        ("precision", scores.precision, PRECISION_MIN),
        ("recall", scores.recall, RECALL_MIN),
    ):
        if value < least:
            return f"its {name} is {value:.3f}, and {least:g} is needed"
    return ""


# --- anomalies that are made ----------------------------------------------------------------------

_CPU, _MEMORY, _IO, _SENT, _CALLS = range(len(METRICS))


def _of_a_rank(change: Callable[[Floats], None]) -> Callable[[Window, np.random.Generator, int], Window]:
    def inject(window: Window, generator: np.random.Generator, length: int) -> Window:
        values = window.values.copy()
        change(values[generator.integers(len(values)), :, -length:])
        return Window(window.ranks, window.slots, np.clip(values, -OCTAVES_MAX, OCTAVES_MAX))

    return inject


def _of_the_job(change: Callable[[Floats], None]) -> Callable[[Window, np.random.Generator, int], Window]:
    def inject(window: Window, generator: np.random.Generator, length: int) -> Window:
        values = window.values.copy()
        for row in values:
            change(row[:, -length:])
        return Window(window.ranks, window.slots, np.clip(values, -OCTAVES_MAX, OCTAVES_MAX))

    return inject


def _stops(row: Floats) -> None:
    row[(_CPU, _CALLS), :] = -OCTAVES_MAX


def _leaks(row: Floats) -> None:
    row[_MEMORY] += np.linspace(1.0, 3.0, row.shape[1])


def _reads(row: Floats) -> None:
    row[_IO] += 5.0


def _falls_silent(row: Floats) -> None:
    row[(_SENT, _CALLS), :] -= 4.0


ANOMALIES: dict[str, Callable[[Window, np.random.Generator, int], Window]] = {
    "a rank stops": _of_a_rank(_stops),
    "the job stops": _of_the_job(_stops),
    "a rank leaks memory": _of_a_rank(_leaks),
    "a rank reads and writes without end": _of_a_rank(_reads),
    "the network falls silent": _of_the_job(_falls_silent),
}


def _some(rows: Floats, count: int, generator: np.random.Generator) -> Floats:
    if len(rows) <= count:
        return rows
    chosen: Floats = rows[np.sort(generator.choice(len(rows), count, replace=False))]
    return chosen


def _thresholds(seen: Sequence[RankScores]) -> Thresholds:
    def above(name: str, least: float) -> float:
        values = np.concatenate([getattr(strangeness, name) for strangeness in seen])
        return max(least, float(np.quantile(values, QUANTILE)) * MARGIN)

    return Thresholds(
        lof=above("lof", LOF_MIN), profile=above("profile", OCTAVES_MIN), clusters=above("clusters", OCTAVES_MIN)
    )
