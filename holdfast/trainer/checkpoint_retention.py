"""Which checkpoints on disk are kept: by number, and by how much room they may take (TRANSOM's two policies). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Retention(NamedTuple):
    """At least the newest step is kept, and those that are `pinned`; of others the newest that fit."""

    steps_max: int
    nbytes_max: int = 0
    """0: as much as there is."""
    pinned: Collection[int] = ()


def outdated(sizes: Mapping[int, int], retention: Retention) -> list[int]:
    """The steps to drop, the oldest first. `sizes` has the bytes of every step that there is."""
    newest_first = sorted(sizes, reverse=True)
    taken = sum(sizes[step] for step in newest_first[:1] + [it for it in newest_first[1:] if it in retention.pinned])
    kept = 1
    dropped: list[int] = []
    for step in newest_first[1:]:
        if step in retention.pinned:
            continue
        taken += sizes[step]
        kept += 1
        # None that is older than one that was dropped: what is left has no gaps.
        if dropped or kept > retention.steps_max or (retention.nbytes_max and taken > retention.nbytes_max):
            dropped.append(step)
    return dropped[::-1]
