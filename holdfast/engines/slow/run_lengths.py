"""Bayesian online change-point detection: how long ago did what is measured begin to be as it is? Pure.

Adams & MacKay 2007, as GREYHOUND §4.2 uses it: of each sample, the probability of every run length, where a run is
normal with a mean and variance of its own (normal-gamma prior, so Student's t predicts). Two things are added. A sample
belongs to no run at all with a small probability, so that a spike ends none. And the prior follows the noise that the
series has shown, so that the first samples of a run count for what they are.

Only a few run lengths are kept: those that are likely, and the newest.
"""

from __future__ import annotations

import math

HAZARD = 1.0 / 250.0
"""Probability that a run ends with a sample."""
OUTLIER = 0.01
"""Probability that a sample belongs to no run; 0: every sample does (Adams & MacKay)."""
SPREAD = 0.3
"""Of the means of runs, as of the logarithms of iteration times."""
PRIOR_SAMPLES = 4.0
"""How many samples the prior of the variance counts for."""
LIKELY_MIN = 1e-3
"""Runs less likely than this are dropped, once they had `YOUNG` samples to become so."""
YOUNG = 4
RUNS_MAX = 16


class Run:
    """Samples from `start` on: their weight, mean and sum of squared deviations."""

    __slots__ = ("count", "likely", "mean", "squares", "start")

    def __init__(self, start: int, mean: float, likely: float) -> None:
        self.start = start
        self.count = 0.0
        self.mean = mean
        self.squares = 0.0
        self.likely = likely


class RunLengths:
    """The likely run lengths of one series. O(1) for each sample: at most `RUNS_MAX` runs are kept."""

    def __init__(self, outlier: float = OUTLIER, hazard: float = HAZARD) -> None:
        self._outlier = outlier
        self._hazard = hazard
        self.runs: list[Run] = []

    def observe(self, index: int, value: float, level: float, noise: float) -> None:
        """Take in a sample, by its number; `level` and `noise` (standard deviation) are what the series was like."""
        born = Run(index, level, self._hazard if self.runs else 1.0)
        prior_weight = (noise / SPREAD) ** 2
        variance = noise * noise
        total = 0.0
        for run in self.runs:
            run.likely *= 1.0 - self._hazard
        self.runs.append(born)
        for run in self.runs:
            # Normal-gamma, with the prior's mean at the level and its variance that of the noise.
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
        """The probability that the present run began after the sample of this number."""
        return sum(run.likely for run in self.runs if run.start > start)

    def likeliest(self) -> Run:
        """The likeliest run."""
        return max(self.runs, key=_likely)

    def began(self, start: int) -> None:
        """It is certain that the present run began with this sample, or later."""
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
