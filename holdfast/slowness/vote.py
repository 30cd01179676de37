"""The parallel group that holds a slow job up, by its stacks: five rounds, ten seconds apart (ByteRobust §5.1). Pure.

Each round groups the stacks and flags the parallel group with the most outliers; the group that was flagged most is the
degrader. A job that goes on has its ranks at many places of a step, so one round says little. Further than the paper:
it must be flagged in most rounds, or what moves about, as long sequences do, would evict somebody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from holdfast.topology import Mesh

ROUNDS = 5  # ByteRobust §5.1
EVERY_S = 10.0  # ByteRobust §5.1


class Group(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A parallel group: the mesh dimension along which it lies, and its global ranks."""

    kind: str
    ranks: tuple[int, ...]


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """The degrader, if there is one, and in how many of the rounds each group was flagged, most often first."""

    degrader: Group | None
    flagged: tuple[tuple[Group, int], ...]
    rounds: int
    reason: str


def flagged(outliers: Collection[int], mesh: Mesh) -> Group | None:
    """The parallel group with the most outliers; of those with equally many the smallest. None: none has any, or most
    ranks are outliers. O(outliers x dimensions)."""
    ranks = set(outliers)
    if not ranks or 2 * len(ranks) > mesh.world_size:
        return None
    found: Counter[Group] = Counter()
    for dim in mesh.names:
        if mesh.size(dim) > 1:
            left = set(ranks)
            while left:
                group = Group(kind=dim, ranks=tuple(mesh.group_of(left.pop(), dim)))
                found[group] = len(ranks.intersection(group.ranks))
                left.difference_update(group.ranks)
    if not found:
        return None
    return min(found, key=lambda group: (-found[group], len(group.ranks), -mesh.names.index(group.kind), group.ranks))


def degrader(rounds: Sequence[Group | None]) -> Vote:
    """The group that was flagged in most of the rounds."""
    counts = Counter(group for group in rounds if group is not None)
    ordered = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    if not ordered:
        return Vote(degrader=None, flagged=(), rounds=len(rounds), reason="no round had outliers")
    group, count = ordered[0]
    words = (
        f"{group.kind} group of ranks {', '.join(map(str, group.ranks))} was flagged in {count} of {len(rounds)} rounds"
    )
    if 2 * count <= len(rounds):
        reason = f"the {words}, no more than half: the outliers move about"
        return Vote(degrader=None, flagged=ordered, rounds=len(rounds), reason=reason)
    return Vote(degrader=group, flagged=ordered, rounds=len(rounds), reason=f"the {words}")
