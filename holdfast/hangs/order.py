"""Ranks that run the same program and have come through it in another order than the rest. Pure.

Of two ranks with one program one is ahead of the other in every group, or level with it. Who is ahead in one group and
behind in another has left something out, or does things in another order; and so has who lacks a collective, and has
entered one that its peers began after that, or who began what is pending on both in another order.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.hangs.collective_graph import WaitGraph
from holdfast.hangs.progress import UNKNOWN, Group

PEERS_MAX = 256


def out_of_order(graph: WaitGraph, ranks: Iterable[int]) -> dict[int, int]:
    """For each of `ranks` with how many of its peers it is out of order."""
    wanted = set(ranks)
    peers: dict[int, set[int]] = {rank: set() for rank in wanted}
    for group in _alike(graph):
        for rank in wanted.intersection(group.ranks):
            if len(peers[rank]) < PEERS_MAX:
                peers[rank].update(other for other in group.ranks[:PEERS_MAX] if other != rank)
    everybody = wanted.union(*peers.values())
    progress = _progress(graph, everybody)
    begun = _Begun(graph, everybody)
    return {
        rank: sum(
            _are_crossed(progress[rank], progress[other])
            or _has_passed_over(graph, progress[rank], other)
            or begun.differ(rank, other)
            for other in others
        )
        for rank, others in peers.items()
    }


_Step = tuple[int, bool, int]


class _Begun:
    """In which order ranks began what is pending on them; ranks that wait alike are compared once."""

    def __init__(self, graph: WaitGraph, ranks: Iterable[int]) -> None:
        numbers: dict[tuple[_Step, ...], int] = {}
        self._of_rank: dict[int, int] = {}
        for rank in ranks:
            waits = (each for each in graph.progress.pending.get(rank, ()) if each.record.operation != UNKNOWN)
            steps = dict.fromkeys((*_kind(each.group, each.record.is_p2p), each.record.sequence) for each in waits)
            self._of_rank[rank] = numbers.setdefault(tuple(steps), len(numbers))
        self._orders = [{step: place for place, step in enumerate(steps)} for steps in numbers]
        self._known: dict[tuple[int, int], bool] = {}

    def differ(self, one: int, other: int) -> bool:
        """Whether two ranks began the same operations in different orders."""
        pair = self._of_rank[one], self._of_rank[other]
        if pair not in self._known:
            first, second = self._orders[pair[0]], self._orders[pair[1]]
            places = [second[step] for step in first if step in second]
            self._known[pair] = places != sorted(places)
        return self._known[pair]


def _alike(graph: WaitGraph) -> list[Group]:
    """Groups whose members run the same program: none of them sends to another one, as stages of a pipeline do."""
    messages = [operation for operation in graph.operations if operation.is_p2p]
    ends = {(operation.joined[0], other) for operation in messages for other in (*operation.joined[1:],)}
    ends |= {(operation.joined[0], other) for operation in messages for other in operation.missing_here}
    ends |= {(operation.joined[0], other) for operation in messages for other in operation.silent}
    found: list[Group] = []
    for group in graph.progress.groups.values():
        members = set(group.ranks)
        if len(members) > 1 and not group.has_p2p and not any(a in members and b in members for a, b in ends):
            found.append(group)
    return found


def _progress(graph: WaitGraph, ranks: set[int]) -> dict[int, dict[tuple[int, bool], int]]:
    """How many collectives each rank has begun, by what its groups are for."""
    progress: dict[int, dict[tuple[int, bool], int]] = {rank: {} for rank in ranks}
    # Several groups of one kind on a rank cannot be told apart by it; their sum still only grows.
    for group in graph.progress.groups.values():
        for is_message, counts in ((False, {} if group.has_p2p else group.entered), (True, group.messages)):
            key = _kind(group, is_message)
            for rank in (rank for rank in ranks.intersection(counts) if counts[rank] >= 0):
                progress[rank][key] = progress[rank].get(key, 0) + counts[rank]
    return progress


def _are_crossed(one: dict[tuple[int, bool], int], other: dict[tuple[int, bool], int]) -> bool:
    differences = [one[kind] - other[kind] for kind in one.keys() & other.keys()]
    return any(difference > 0 for difference in differences) and any(difference < 0 for difference in differences)


def _has_passed_over(graph: WaitGraph, one: dict[tuple[int, bool], int], other: int) -> bool:
    """Whether of what is pending on `other` some is lacking to `one`, and something after it is not."""
    lacks = False
    for each in graph.progress.pending.get(other, ()):
        count = one.get(_kind(each.group, each.record.is_p2p))
        if count is not None and each.record.sequence > count:
            lacks = True
        elif count is not None and lacks:
            return True
    return False


def _kind(group: Group, is_message: bool) -> tuple[int, bool]:
    return group.kind, is_message
