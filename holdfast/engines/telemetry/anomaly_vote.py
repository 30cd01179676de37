"""Two votes of three make an anomaly (TRANSOM Algorithm 1). Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.engines.telemetry.model import RankScores, Thresholds

VOTES_MIN = 2
WHOLE_JOB_SHARE = 0.5
"""Share of anomalous ranks above which the whole job is anomalous and no rank is named."""


class AnomalyVote(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a vote."""

    is_anomaly: bool
    is_job: bool = False
    """True if the whole job is anomalous."""
    ranks: tuple[int, ...] = ()
    """Anomalous to at least two detectors; empty if the whole job is."""
    detectors: tuple[str, ...] = ()
    """Detectors that voted for any rank."""
    strange: tuple[float, ...] = ()
    """Highest score of each detector, in multiples of its threshold."""


def vote(ranks: tuple[int, ...], seen: RankScores, thresholds: Thresholds) -> AnomalyVote:
    """Return the verdict on one window: a rank is anomalous if two of three detectors score it above their
    thresholds."""
    excess = {name: getattr(seen, name) / getattr(thresholds, name) for name in ("lof", "profile", "clusters")}
    votes = np.sum([values > 1.0 for values in excess.values()], axis=0)
    strange = [place for place in range(len(ranks)) if votes[place] >= VOTES_MIN]
    if not strange:
        return AnomalyVote(is_anomaly=False)
    detectors = tuple(name for name, values in excess.items() if any(values[place] > 1.0 for place in strange))
    is_job = len(strange) > WHOLE_JOB_SHARE * len(ranks)
    return AnomalyVote(
        is_anomaly=True,
        is_job=is_job,
        ranks=() if is_job else tuple(ranks[place] for place in strange),
        detectors=detectors,
        strange=tuple(round(float(max(excess[name][place] for place in strange)), 2) for name in detectors),
    )
