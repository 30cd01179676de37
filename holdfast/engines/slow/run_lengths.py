"""Bayesian online change-point detection: the probable number of samples since the last change. Pure.

Adams & MacKay 2007, as used by GREYHOUND §4.2: each sample updates the probability of every run length, where a run is
normal with its own mean and variance (normal-gamma prior, so Student's t predicts). Two additions: a sample belongs to
no run with a small probability, so that a spike ends none; and the prior follows the noise of the series, so that the
first samples of a run are weighted properly. Only the likely and the newest run lengths are kept.
"""

from __future__ import annotations

import math

HAZARD = 1.0 / 250.0
"""Probability that a run ends at a sample."""
OUTLIER = 0.01
"""Probability that a sample belongs to no run; 0 as in Adams & MacKay."""
SPREAD = 0.3
"""Standard deviation of the means of runs (logarithms of iteration times)."""
PRIOR_SAMPLES = 4.0
"""Weight of the variance's prior in samples."""
LIKELY_MIN = 1e-3
"""Probability below which a run is dropped once it has had `YOUNG` samples."""
YOUNG = 4
RUNS_MAX = 16


class Run:
    """Samples from `start` on: weight, mean and sum of squared deviations."""

    __slots__ = ("count", "likely", "mean", "squares", "start")

    def __init__(self, start: int, mean: float, likely: float) -> None:
        self.start = start
        self.count = 0.0
        self.mean = mean
        self.squares = 0.0
        self.likely = likely


class RunLengths:
    """Likely run lengths of one series. O(1) per sample: at most `RUNS_MAX` runs are kept."""

    def __init__(self, outlier: float = OUTLIER) -> None:
        self._outlier = outlier
        self.runs: list[Run] = []

    def observe(self, index: int, value: float, level: float, noise: float) -> None:
        """Add a sample by its number; `level` and `noise` (standard deviation) describe the series so far."""
        born = Run(index, level, HAZARD if self.runs else 1.0)
        prior_weight = (noise / SPREAD) ** 2
        variance = noise * noise
        total = 0.0
        for run in self.runs:
            run.likely *= 1.0 - HAZARD
        self.runs.append(born)
        for run in self.runs:
            # Normal-gamma; the prior's mean is the level, its variance that of the noise.
            weight = prior_weight + run.count
            centre = (prior_weight * level + run.count * run.mean) / weight
            off = run.mean - level
            squares = PRIOR_SAMPLES * variance + run.squares + prior_weight * run.count * off * off / weight
            freedom = PRIOR_SAMPLES + run.count
            scale2 = squares / freedom * (weight + 1.0) / weight
            deviation = value - centre
            density = math.exp(
                math.lgamma((freedom + 1.0) / 2.0)
                - math.lgamma(freedom / 2.0)
                - 0.5 * math.log(freedom * math.pi * scale2)
                - (freedom + 1.0) / 2.0 * math.log1p(deviation * deviation / (freedom * scale2))
            )
            fits = (1.0 - self._outlier) * density
            total_density = fits + self._outlier
            run.likely *= total_density
            total += run.likely
            share = fits / total_density if total_density > 0.0 else 0.0
            if share > 0.0:
                run.count += share
                step = value - run.mean
                run.mean += step * share / run.count
                run.squares += share * step * (value - run.mean)
        self._prune(index - YOUNG, total)

    def changed_since(self, start: int) -> float:
        """Return the probability that the present run began after the sample of this number."""
        return sum(run.likely for run in self.runs if run.start > start)

    def likeliest(self) -> Run:
        return max(self.runs, key=_likely)

    def began(self, start: int) -> None:
        """Drop runs that began before this sample: the present run certainly began at it, or later."""
        self.runs = [run for run in self.runs if run.start >= start] or self.runs[-1:]
        total = sum(run.likely for run in self.runs)
        for run in self.runs:
            run.likely = run.likely / total if total > 0.0 else 1.0 / len(self.runs)

    def _prune(self, young: int, total: float) -> None:
        if not total > 0.0:
            newest = self.runs[-1]
            newest.likely = 1.0
            self.runs = [newest]
            return
        floor = LIKELY_MIN * total
        kept = [run for run in self.runs if run.start > young or run.likely >= floor]
        if len(kept) > RUNS_MAX:
            kept.remove(min((run for run in kept if run.start <= young), key=_likely))
        self.runs = kept
        total = sum(run.likely for run in kept)
        for run in kept:
            run.likely /= total


def _likely(run: Run) -> float:
    return run.likely
