"""What was learned of healthy training, and what it says of a window. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec
import numpy as np

from holdfast.engines.telemetry.lof import Crowd, factors
from holdfast.engines.telemetry.neighbor_profile import distances, subsequences
from holdfast.engines.telemetry.rank_clusters import distances_to_others
from holdfast.engines.telemetry.windows import METRICS, Floats, Window

FORMAT = 1
"""Of a model's bytes and meaning: one of another format is not read."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How windows are cut and looked at; a model is good for the settings that it was trained with only.

    `interval_s` between two measurements, `window` of which make a window, of which the last `length` are judged.
    """

    interval_s: float = 5.0
    window: int = 24
    length: int = 6
    crowd: int = 500
    crowd_neighbours: int = 15
    bags: int = 12
    bag: int = 64
    rank_neighbours: int = 3
    band: int = 2


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers as they are kept: single precision, in rows."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Floats) -> Array:
        """The numbers of an array."""
        return cls(shape=values.shape, data=values.astype("<f4").tobytes())

    def values(self) -> Floats:
        """The array.

        Raises:
            ValueError: there are more or fewer numbers than its shape says.
        """
        return np.frombuffer(self.data, dtype="<f4").astype(np.float64).reshape(self.shape)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Above these a detector votes: a factor, and two distances in octaves."""

    lof: float
    profile: float
    clusters: float


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """How a model did on windows that it had not seen: `healthy` ones, `injected` anomalies and `recorded` ones.

    `false_alarms` of the healthy ones were taken for anomalies; `found` are of the others.
    """

    healthy: int
    false_alarms: int
    injected: int
    injected_found: int
    recorded: int = 0
    recorded_found: int = 0

    @property
    def accuracy(self) -> float:
        """The share of all windows that was judged rightly."""
        right = self.healthy - self.false_alarms + self.injected_found + self.recorded_found
        return right / max(1, self.healthy + self.injected + self.recorded)

    @property
    def precision(self) -> float:
        """The share of true ones among all alarms."""
        found = self.injected_found + self.recorded_found
        return found / max(1, found + self.false_alarms)

    @property
    def recall(self) -> float:
        """The share of anomalies that was found."""
        return (self.injected_found + self.recorded_found) / max(1, self.injected + self.recorded)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A version of what was learned. `jobs` are those whose history it was learned from."""

    version: str
    made_at: datetime
    settings: Settings
    thresholds: Thresholds
    crowd_points: Array
    crowd_reach: Array
    crowd_density: Array
    bags: Array
    windows: int
    jobs: tuple[str, ...] = ()
    scores: Scores | None = None
    metrics: tuple[str, ...] = METRICS
    format: int = FORMAT

    @property
    def crowd(self) -> Crowd:
        """The healthy points."""
        return Crowd(
            self.crowd_points.values(),
            self.crowd_reach.values(),
            self.crowd_density.values(),
            self.settings.crowd_neighbours,
        )


class Strangeness(msgspec.Struct, frozen=True, kw_only=True):
    """How strange each rank of a window is to each detector, in the order of the window's ranks."""

    lof: Floats
    profile: Floats
    clusters: Floats


class Lens:
    """A model made ready for use."""

    def __init__(self, settings: Settings, crowd: Crowd, bags: Floats) -> None:
        self._settings = settings
        self._crowd = crowd
        self._bags = bags

    @classmethod
    def of(cls, model: Model) -> Lens:
        """That of a model."""
        return cls(model.settings, model.crowd, model.bags.values())

    def look(self, window: Window) -> Strangeness:
        """How strange the end of a window is, which is in octaves and filled."""
        settings = self._settings
        ranks = len(window.ranks)
        recent = window.values[:, :, -settings.length :]
        points = recent.transpose(0, 2, 1).reshape(-1, recent.shape[1])
        return Strangeness(
            # The median: what lasts, and not one odd moment.
            lof=np.median(factors(self._crowd, points).reshape(ranks, settings.length), axis=1),
            profile=distances(self._bags, subsequences(recent, settings.length)),
            clusters=distances_to_others(
                window.values[:, :, -2 * settings.length :], settings.rank_neighbours, settings.band
            ),
        )
