"""The choice of the checkpoints on disk that are kept, by number and by size (TRANSOM's two policies)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Retention(NamedTuple):
    """A limit on checkpoints. The newest step and the newest certified one stay in any case."""

    steps_max: int
    nbytes_max: int = 0
    """0: as much as there is."""
    certified_up_to: int | None = None
    """To which step a job would go back after bad numbers, or to the one before it that there is (ADR 10)."""


def outdated(sizes: Mapping[int, int], retention: Retention) -> list[int]:
    """Return the steps to drop, the oldest first. `sizes` has the bytes of every step that there is."""
    newest_first = sorted(sizes, reverse=True)
    up_to = retention.certified_up_to
    certified = next((step for step in newest_first if up_to is not None and step <= up_to), None)
    taken = sum(sizes[step] for step in {*newest_first[:1], certified} if step is not None)
    kept = 1
    dropped: list[int] = []
    for step in newest_first[1:]:
        if step == certified:
            continue
        taken += sizes[step]
        kept += 1
        # None that is older than one that was dropped: what is left has no gaps.
        if dropped or kept > retention.steps_max or (retention.nbytes_max and taken > retention.nbytes_max):
            dropped.append(step)
    return dropped[::-1]
