"""Telemetry of a healthy job: steps, checkpoints, stages, noise. Seeded."""

from __future__ import annotations

import numpy as np

from holdfast.engines.telemetry.windows import METRICS, Window, filled, in_octaves, usual_level


def training(seed: int, ranks: int = 8, slots: int = 24, start: int = 0) -> Window:
    """Return the telemetry of ranks in two pipeline stages over `slots` intervals; each 20th saves a checkpoint."""
    generator = np.random.default_rng((seed, start))
    times = np.arange(start, start + slots)
    values = np.empty((ranks, len(METRICS), slots))
    for rank in range(ranks):
        stage = rank // (ranks // 2)
        saves = (times - stage) % 20 == 0
        noise = np.exp(generator.normal(0, 0.05, (len(METRICS), slots)))
        base = np.stack(
            [
                np.where(saves, 0.5, 1.0),
                np.full(slots, 4e9 + 5e8 * stage),
                np.where(saves, 3e8, 5e6),
                np.where(saves, 2e7, 2e8),
                np.where(saves, 8.0, 20.0),
            ]
        )
        values[rank] = base * noise
    return Window(tuple(range(ranks)), tuple(int(slot) for slot in times), values)


def history(count: int, seed: int = 0, ranks: int = 8) -> list[Window]:
    """Windows one after the other, as a model is trained on them."""
    level = usual_level(training(seed, ranks, 100))
    return [filled(in_octaves(training(seed, ranks, 24, 12 * number), level)) for number in range(count)]
