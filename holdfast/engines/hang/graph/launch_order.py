"""Ranks that run the same program but launched their operations in another order than their peers. Pure.

Of two ranks with one program, one is ahead of the other or level with it in every group. They are out of order if

- one is ahead in one group and behind in another,
- one lacks an operation that is pending on the other, but has begun one that the other began later, or
- both have begun the same operations, in different orders.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.engines.hang.graph.collective_graph import WaitGraph
from holdfast.engines.hang.graph.progress import GroupProgress, is_recorded

PEERS_MAX = 256
"""Peers that a rank is compared with. All pairs of a group of thousands would be too many, and show no more."""


def out_of_order(graph: WaitGraph, ranks: Iterable[int]) -> dict[int, int]:
    """Return, for each of `ranks`, the number of peers that it is out of order with."""
    wanted = set(ranks)
    peers: dict[int, set[int]] = {rank: set() for rank in wanted}
    for group in _alike(graph):
        for rank in wanted.intersection(group.ranks):
            if len(peers[rank]) < PEERS_MAX:
                peers[rank].update(other for other in group.ranks[:PEERS_MAX] if other != rank)
    compared = _Comparisons(graph, wanted.union(*peers.values()))
    return {rank: sum(compared.are_crossed(rank, other) for other in others) for rank, others in peers.items()}


_Kind = tuple[int, bool]


class _LaunchHistory(msgspec.Struct, frozen=True):
    """Collectives begun per kind of group, operations pending, and the position of each in the order of launch."""

    progress: dict[_Kind, int]
    pending: tuple[tuple[_Kind, int], ...]
    places: dict[tuple[_Kind, int], int]


class _Comparisons:
    """Comparisons of ranks; ranks with equal histories are compared once."""

    def __init__(self, graph: WaitGraph, ranks: set[int]) -> None:
        progress = _progress(graph, ranks)
        numbers: dict[object, int] = {}
        self._number: dict[int, int] = {}
        self._histories: list[_LaunchHistory] = []
        for rank in ranks:
            waits = graph.progress.pending.get(rank, ())
            pending = tuple((_kind(each.group, each.record.is_p2p), each.record.sequence) for each in waits)
            in_order = tuple(step for step, each in zip(pending, waits, strict=True) if is_recorded(each.record))
            key = frozenset(progress[rank].items()), pending, in_order
            if key not in numbers:
                numbers[key] = len(numbers)
                places = {step: place for place, step in enumerate(dict.fromkeys(in_order))}
                self._histories.append(_LaunchHistory(progress[rank], pending, places))
            self._number[rank] = numbers[key]
        self._known: dict[tuple[int, int], bool] = {}

    def are_crossed(self, rank: int, other: int) -> bool:
        pair = self._number[rank], self._number[other]
        if pair not in self._known:
            one, two = self._histories[pair[0]], self._histories[pair[1]]
            self._known[pair] = (
                _is_ahead_and_behind(one, two) or _has_passed_over(one, two) or _began_otherwise(one, two)
            )
        return self._known[pair]


def _alike(graph: WaitGraph) -> list[GroupProgress]:
    """Return groups whose members run the same program: none sends to another, unlike stages of a pipeline."""
    messages = [operation for operation in graph.operations if operation.is_p2p]
    ends = {frozenset((*each.joined, *each.missing_here, *each.silent)) for each in messages}
    found: list[GroupProgress] = []
    for group in graph.progress.groups.values():
        members = set(group.ranks)
        if len(members) > 1 and not group.has_p2p and not any(both <= members for both in ends):
            found.append(group)
    return found


def _progress(graph: WaitGraph, ranks: set[int]) -> dict[int, dict[_Kind, int]]:
    """Count the collectives that each rank has begun, by kind of group."""
    progress: dict[int, dict[_Kind, int]] = {rank: {} for rank in ranks}
    # A rank cannot tell its groups of one kind apart, but their sum only grows.
    for group in graph.progress.groups.values():
        for is_message, counts in ((False, {} if group.has_p2p else group.entered), (True, group.messages)):
            key = _kind(group, is_message)
            for rank in (rank for rank in ranks.intersection(counts) if counts[rank] >= 0):
                progress[rank][key] = progress[rank].get(key, 0) + counts[rank]
    return progress


def _is_ahead_and_behind(one: _LaunchHistory, two: _LaunchHistory) -> bool:
    differences = [one.progress[kind] - two.progress[kind] for kind in one.progress.keys() & two.progress.keys()]
    return any(difference > 0 for difference in differences) and any(difference < 0 for difference in differences)


def _has_passed_over(one: _LaunchHistory, two: _LaunchHistory) -> bool:
    """Return True if the first lacks an operation that is pending on the second, but has a later one."""
    lacks = False
    for kind, sequence in two.pending:
        count = one.progress.get(kind)
        if count is not None and sequence > count:
            lacks = True
        elif count is not None and lacks:
            return True
    return False


def _began_otherwise(one: _LaunchHistory, two: _LaunchHistory) -> bool:
    """Return True if both began the same operations in different orders."""
    places = [two.places[step] for step in one.places if step in two.places]
    return places != sorted(places)


def _kind(group: GroupProgress, is_message: bool) -> _Kind:
    return group.kind, is_message
