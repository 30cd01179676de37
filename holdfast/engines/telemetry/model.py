"""A model of healthy training, and its scores of a window. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec
import numpy as np

from holdfast.engines.telemetry.lof import Crowd, factors
from holdfast.engines.telemetry.neighbor_profile import distances, subsequences
from holdfast.engines.telemetry.rank_clusters import distances_to_others
from holdfast.engines.telemetry.windows import METRICS, Floats, Window

FORMAT = 1
"""Version of a model's bytes and meaning; other versions are not read."""


class WindowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of windows and detectors; a model is valid only for the settings that it was trained with."""

    interval_s: float = 5.0
    """Seconds between measurements."""
    window: int = 24
    """Measurements per window."""
    length: int = 6
    """Measurements at its end that are judged."""
    crowd: int = 500
    crowd_neighbours: int = 15
    bags: int = 12
    bag: int = 64
    rank_neighbours: int = 3
    band: int = 2


class StoredArray(msgspec.Struct, frozen=True, kw_only=True):
    """Stored numbers: single precision, in rows."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Floats) -> StoredArray:
        return cls(shape=values.shape, data=values.astype("<f4").tobytes())

    def values(self) -> Floats:
        """Return the array. Raises ValueError if the number of values does not match the shape."""
        return np.frombuffer(self.data, dtype="<f4").astype(np.float64).reshape(self.shape)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Values above which a detector votes: a factor, and two distances in octaves."""

    lof: float
    profile: float
    clusters: float


class ModelScores(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a test on unseen windows."""

    healthy: int
    """Number of healthy windows."""
    false_alarms: int
    """Healthy windows taken for anomalies."""
    injected: int
    """Number of windows with injected anomalies."""
    injected_found: int
    recorded: int = 0
    """Number of windows with recorded anomalies."""
    recorded_found: int = 0

    @property
    def accuracy(self) -> float:
        right = self.healthy - self.false_alarms + self.injected_found + self.recorded_found
        return right / max(1, self.healthy + self.injected + self.recorded)

    @property
    def precision(self) -> float:
        found = self.injected_found + self.recorded_found
        return found / max(1, found + self.false_alarms)

    @property
    def recall(self) -> float:
        return (self.injected_found + self.recorded_found) / max(1, self.injected + self.recorded)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a learned model. `jobs`: those whose history it was learned from."""

    version: str
    made_at: datetime
    settings: WindowSettings
    thresholds: Thresholds
    crowd_points: StoredArray
    crowd_reach: StoredArray
    crowd_density: StoredArray
    bags: StoredArray
    windows: int
    jobs: tuple[str, ...] = ()
    scores: ModelScores | None = None
    metrics: tuple[str, ...] = METRICS
    format: int = FORMAT

    @property
    def crowd(self) -> Crowd:
        return Crowd(
            self.crowd_points.values(),
            self.crowd_reach.values(),
            self.crowd_density.values(),
            self.settings.crowd_neighbours,
        )


class RankScores(msgspec.Struct, frozen=True, kw_only=True):
    """Each detector's score of each rank, in the order of the window's ranks."""

    lof: Floats
    profile: Floats
    clusters: Floats


class DetectorSet:
    def __init__(self, settings: WindowSettings, crowd: Crowd, bags: Floats) -> None:
        self._settings = settings
        self._crowd = crowd
        self._bags = bags

    @classmethod
    def of(cls, model: Model) -> DetectorSet:
        return cls(model.settings, model.crowd, model.bags.values())

    def score(self, window: Window) -> RankScores:
        """Score the end of a window, which must be in octaves and filled."""
        settings = self._settings
        ranks = len(window.ranks)
        recent = window.values[:, :, -settings.length :]
        points = recent.transpose(0, 2, 1).reshape(-1, recent.shape[1])
        return RankScores(
            # The median counts what lasts, not one odd moment.
            lof=np.median(factors(self._crowd, points).reshape(ranks, settings.length), axis=1),
            profile=distances(self._bags, subsequences(recent, settings.length)),
            clusters=distances_to_others(
                window.values[:, :, -2 * settings.length :], settings.rank_neighbours, settings.band
            ),
        )
