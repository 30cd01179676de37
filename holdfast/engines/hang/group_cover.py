"""The smallest set of parallel groups that covers outlier ranks (ByteRobust §5.1). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec

from holdfast.topology import Mesh

_SHARE_MIN = 1 / 4
"""Minimum share of a group's machines with outliers: a group of a hundred with two of them is no suspect."""

_SHARE_MIN_OF_SEVERAL = 1 / 2
"""Minimum share for a group along several dimensions, such as a whole replica."""

_NEAREST_FIRST = ("pp", "ep", "cp", "tp")
"""Order of dimensions for groups that cover equally: first those along which a hanging rank blocks whole machines."""


class SharedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parallel groups along `dims` on the same machines. `ranks`: members of the groups with outliers."""

    dims: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    outliers: tuple[int, ...]


class GroupCover(msgspec.Struct, frozen=True, kw_only=True):
    """A cover of the outliers: groups, and machines that share none. `crossing`: machines on which groups intersect."""

    groups: tuple[SharedGroup, ...] = ()
    alone: tuple[str, ...] = ()
    crossing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Candidate(msgspec.Struct, frozen=True):
    dims: tuple[str, ...]
    ranks: frozenset[int]
    nodes: frozenset[str]


def cover_with_groups(
    outliers: Sequence[int], mesh: Mesh | None, node_of: Callable[[int], str], partners: Sequence[int] = ()
) -> GroupCover:
    """Return the fewest groups whose machines cover those of `outliers`. A machine alone covers itself. `partners`:
    ranks that outliers wait for one by one; they are covered as well."""
    suspects = {node_of(rank) for rank in (*outliers, *partners)}
    if mesh is None or len(suspects) <= 1 or any(not 0 <= rank < mesh.world_size for rank in outliers):
        return GroupCover(alone=tuple(sorted(suspects, key=natural_order)))
    candidates = list(_candidates(sorted({*outliers, *partners}), mesh, node_of, suspects))
    chosen: list[_Candidate] = []
    notes: list[str] = []
    left = set(suspects)
    while left:
        best = min(candidates, key=lambda candidate: _score(candidate, left), default=None)
        if best is None or len(best.nodes & left) < 2:
            break
        notes += _ties(best, candidates, left)
        chosen.append(best)
        left -= best.nodes
    crossing: frozenset[str] = frozenset()
    if len(chosen) > 1 and not left and len({candidate.dims for candidate in chosen}) > 1:
        crossing = frozenset.intersection(*(candidate.nodes for candidate in chosen)) & suspects
    return GroupCover(
        groups=tuple(_shared(candidate, outliers) for candidate in chosen),
        alone=tuple(sorted(left, key=natural_order)),
        crossing=tuple(sorted(crossing, key=natural_order)),
        notes=tuple(notes),
    )


def natural_order(node: str) -> tuple[str, int, str]:
    """Return a sort key that puts node-2 before node-10."""
    head = node.rstrip("0123456789")
    return head, int(node[len(head) :] or 0), node


def _candidates(
    outliers: Sequence[int], mesh: Mesh, node_of: Callable[[int], str], suspects: set[str]
) -> Iterator[_Candidate]:
    dims = [dim for dim in mesh.names if mesh.size(dim) > 1]
    for count in range(1, len(dims)):
        least = _SHARE_MIN if count == 1 else _SHARE_MIN_OF_SEVERAL
        for chosen in combinations(dims, count):
            by_nodes: defaultdict[frozenset[str], set[int]] = defaultdict(set)
            for ranks in _touched(outliers, mesh, chosen, least):
                by_nodes[frozenset(map(node_of, ranks))].update(ranks)
            for nodes, members in by_nodes.items():
                if len(nodes) > 1 and len(nodes & suspects) >= max(2, least * len(nodes)):
                    yield _Candidate(chosen, frozenset(members), nodes)


def _touched(outliers: Sequence[int], mesh: Mesh, dims: tuple[str, ...], least: float) -> Iterator[list[int]]:
    """Yield groups along `dims` with enough outliers to be suspects."""
    offsets = [0]
    for dim in dims:
        offsets = [offset + index * mesh.stride(dim) for index in range(mesh.size(dim)) for offset in offsets]
    parts = [(mesh.stride(dim), mesh.size(dim)) for dim in dims]
    members: defaultdict[int, int] = defaultdict(int)
    for rank in outliers:
        members[rank - sum(rank // stride % size * stride for stride, size in parts)] += 1
    for first, count in members.items():
        # A machine has at least one rank of the group, so the share of ranks bounds that of machines only loosely.
        if count >= 2 or len(offsets) <= 1 / least:
            yield [first + offset for offset in offsets]


def _score(candidate: _Candidate, left: set[str]) -> tuple[int, int, int, int, tuple[str, ...], int]:
    covered = len(candidate.nodes & left)
    nearness = min(_NEAREST_FIRST.index(dim) if dim in _NEAREST_FIRST else 9 for dim in candidate.dims)
    return -covered, len(candidate.nodes), len(candidate.dims), nearness, candidate.dims, min(candidate.ranks)


def _ties(best: _Candidate, candidates: Sequence[_Candidate], left: set[str]) -> list[str]:
    """Return a note if another group would cover as many outliers."""
    same = [
        candidate
        for candidate in candidates
        if candidate.nodes != best.nodes
        and (len(candidate.nodes & left), len(candidate.nodes)) == (len(best.nodes & left), len(best.nodes))
    ]
    if not same:
        return []
    other = min(same, key=lambda candidate: _score(candidate, left))
    return [
        f"a {'-'.join(other.dims)} group on {', '.join(sorted(other.nodes, key=natural_order))} would cover as many"
        f" outliers; {'-'.join(best.dims)} comes first"
    ]


def _shared(candidate: _Candidate, outliers: Sequence[int]) -> SharedGroup:
    return SharedGroup(
        dims=candidate.dims,
        ranks=tuple(sorted(candidate.ranks)),
        nodes=tuple(sorted(candidate.nodes, key=natural_order)),
        outliers=tuple(rank for rank in sorted(outliers) if rank in candidate.ranks),
    )
