"""Vote on the parallel group that slows a job, by stacks: five rounds, ten seconds apart (ByteRobust §5.1). Pure.

Each round groups the stacks and flags the parallel group with the most outliers; the group that was flagged most is the
degrader. Ranks of a running job are at many places of a step, so one round proves little. Beyond the paper: a machine
is a group as well, and the degrader must be flagged in most rounds, since moving outliers such as long sequences must
evict no node. A round in which too few ranks could be read counts as no round (`counts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.engines.hang.stacks.outliers import PEERS_MIN
from holdfast.engines.wording import ranks_in_words
from holdfast.topology import Mesh

MACHINE = "machine"
"""Kind of a group that consists of the ranks of one machine."""

CONFIDENCE_MAX = 0.9
"""Confidence in a group flagged in every round: stacks show where ranks are, but no test has shown why."""


class VotedGroup(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A parallel group: its mesh dimension, or `MACHINE`, and its global ranks."""

    kind: str
    ranks: tuple[int, ...]


class StackVote(msgspec.Struct, frozen=True, kw_only=True):
    """The degrader, if any, and the number of rounds in which each group was flagged, highest first."""

    degrader: VotedGroup | None
    flagged: tuple[tuple[VotedGroup, int], ...]
    rounds: int
    confidence: float = 0.0
    reason: str


def counts(read: int, outliers: int, world_size: int) -> bool:
    """Return True if the ranks that were not read cannot change the result of a round, wherever they are.

    The dominant stacks are healthy (ByteRobust §5.1): those of most ranks of the job, not of most that could be read.
    So unread ranks count as outliers, and the rest must still be more than half of the job. Below `PEERS_MIN` read
    ranks none can be an outlier, so such a round must not count as one without outliers either.
    """
    unread = world_size - read
    return unread <= 0 or (read >= PEERS_MIN and 2 * (outliers + unread) < world_size)


def flagged(outliers: Collection[int], mesh: Mesh, ranks_per_node: int = 0) -> VotedGroup | None:
    """Return the parallel group with the most outliers, the smallest on a tie. O(outliers x dimensions). None without
    outliers, or if most ranks are outliers. `ranks_per_node` 0: unknown, so no machine is flagged."""
    ranks = set(outliers)
    if not ranks or 2 * len(ranks) > mesh.world_size:
        return None
    # A group of all ranks has no other ranks to compare with.
    dims = [dim for dim in mesh.names if 1 < mesh.size(dim) < mesh.world_size]
    kinds: list[tuple[str, Callable[[int], range]]] = []
    if 0 < ranks_per_node < mesh.world_size:
        kinds.append((MACHINE, lambda rank: _machine(rank, ranks_per_node)))
    kinds += [(dim, lambda rank, dim=dim: mesh.group_of(rank, dim)) for dim in reversed(dims)]  # type: ignore[misc]
    found: dict[VotedGroup, tuple[int, int]] = {}
    for place, (kind, group_of) in enumerate(kinds):
        left = set(ranks)
        while left:
            group = VotedGroup(kind=kind, ranks=tuple(group_of(left.pop())))
            found[group] = len(ranks.intersection(group.ranks)), place
            left.difference_update(group.ranks)
    return min(found, key=lambda it: (-found[it][0], len(it.ranks), found[it][1], it.ranks), default=None)


def _machine(rank: int, ranks_per_node: int) -> range:
    first = rank - rank % ranks_per_node
    return range(first, first + ranks_per_node)


def degrader(rounds: Sequence[VotedGroup | None], planned: int = 0, discarded: int = 0) -> StackVote:
    """Return the group that was flagged in more than half of the rounds. `rounds` are those that count, `discarded`
    those that do not. Where fewer than `planned` count, a group must be flagged in more than half of `planned`: rounds
    without a result do not make it easier to suspect a group."""
    needed = max(len(rounds), planned)
    times = Counter(group for group in rounds if group is not None)
    ordered = tuple(sorted(times.items(), key=lambda item: (-item[1], item[0])))
    found, confidence = None, 0.0
    if not rounds:
        reason = f"no group is named: in each of {discarded} rounds too few ranks could be read"
    elif not ordered:
        reason = "no round had outliers"
    else:
        group, count = ordered[0]
        reason = f"{in_words(group)} was flagged in {count} of {len(rounds)} rounds"
        if 2 * count > needed:
            found, confidence = group, round(CONFIDENCE_MAX * count / needed, 2)
        elif 2 * count <= len(rounds):
            reason += ", no more than half: the outliers move about"
        else:
            reason += f", no more than half of the {planned} planned"
    if rounds and discarded:
        reason += f"; in {discarded} {'rounds' if discarded > 1 else 'round'} too few ranks could be read"
    return StackVote(degrader=found, flagged=ordered, rounds=len(rounds), confidence=confidence, reason=reason)


def in_words(group: VotedGroup) -> str:
    return f"the {group.kind}{'' if group.kind == MACHINE else ' group'} of {ranks_in_words(group.ranks)}"
