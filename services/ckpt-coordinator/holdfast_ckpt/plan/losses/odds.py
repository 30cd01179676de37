"""The odds of a job's memory: which losses of machines leave every shard somewhere, counted and not sampled.

A loss is fatal if it takes all holders of a shard. Every plan gives each machine few holders, so the smallest fatal
sets are few and small, and a loss is fatal exactly if it contains one of them. Losses of one, two and three machines
are counted from these sets by inclusion and exclusion, in a time that grows with the number of machines and not with
the number of losses (1.6e11 sets of three among 10,000 machines). Losses of a parallel group or of a rack are tried
one by one.

Nothing is assumed to be common to two ranks. If replicas have state in common, losses that are counted as fatal may
leave all of it at another replica: the odds are lower bounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from math import comb

import msgspec

from holdfast.topology import Topology

MACHINES_MAX = 3
"""Largest number of machines whose simultaneous loss is counted."""


class Guard(msgspec.Struct, frozen=True):
    """Nodes that hold shards together: the shards are lost if more than `spare` of these nodes are."""

    nodes: frozenset[int]
    spare: int


class LossOdds(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of one kind, and how many of them leave every shard in the memory of some node."""

    loss: str
    """"1 machine", "2 machines", "rack", "group dp"..."""
    losses: int
    survived: int


def loss_odds(guards: Iterable[Guard], topology: Topology, racks: Sequence[str] = ()) -> tuple[LossOdds, ...]:
    """Return the odds for one, two and three machines, for a rack if nodes named theirs (`racks` by node rank, "" if
    unknown), and for a parallel group of each dimension that spans nodes.
    """
    known = set(guards)
    return (*_machine_odds(known, topology.nnodes), *_set_odds(known, topology, racks))


def _machine_odds(guards: set[Guard], nnodes: int) -> list[LossOdds]:
    singles, pairs, triples = _fatal_sets(guards)
    harmless = nnodes - len(singles)
    survived = (
        harmless,
        comb(harmless, 2) - len(pairs),
        comb(harmless, 3) - _triples_with_a_pair(pairs, harmless) - len(triples),
    )
    return [
        LossOdds(loss="1 machine" if lost == 1 else f"{lost} machines", losses=comb(nnodes, lost), survived=left)
        for lost, left in enumerate(survived, start=1)
        if lost <= nnodes
    ]


def _fatal_sets(guards: set[Guard]) -> tuple[set[int], set[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the smallest fatal sets of one, two and three nodes: none contains another."""
    fatal: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    for guard in guards:
        if guard.spare < MACHINES_MAX:
            fatal[guard.spare + 1].update(combinations(sorted(guard.nodes), guard.spare + 1))
    singles = {node for (node,) in fatal[1]}
    pairs = {pair for pair in fatal[2] if singles.isdisjoint(pair)}
    triples = [
        triple for triple in fatal[3] if singles.isdisjoint(triple) and pairs.isdisjoint(combinations(triple, 2))
    ]
    return singles, pairs, triples


def _triples_with_a_pair(pairs: set[tuple[int, ...]], nnodes: int) -> int:
    """Return the number of sets of three nodes that contain a pair.

    Each pair has `nnodes - 2` such sets. That counts a set with two pairs twice, and one with three pairs three times.
    """
    partners: defaultdict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        partners[one].add(other)
        partners[other].add(one)
    with_two = sum(comb(len(others), 2) for others in partners.values())
    with_three = sum(len(partners[one] & partners[other]) for one, other in pairs) // 3
    return len(pairs) * (nnodes - 2) - with_two + with_three


def _set_odds(guards: set[Guard], topology: Topology, racks: Sequence[str]) -> list[LossOdds]:
    guards_of: defaultdict[int, list[Guard]] = defaultdict(list)
    for guard in guards:
        for node in guard.nodes:
            guards_of[node].append(guard)
    found = []
    nodes_in: defaultdict[str, set[int]] = defaultdict(set)
    for node, rack in enumerate(racks):
        nodes_in[rack].add(node)
    nodes_in.pop("", None)
    if nodes_in:
        survived = sum(_is_survived(frozenset(nodes), guards_of) for nodes in nodes_in.values())
        found.append(LossOdds(loss="rack", losses=len(nodes_in), survived=survived))
    for dim in topology.mesh.names:
        groups = Counter(
            frozenset(rank // topology.ranks_per_node for rank in group) for group in topology.mesh.groups(dim)
        )
        if max(map(len, groups)) > 1:
            survived = sum(count for nodes, count in groups.items() if _is_survived(nodes, guards_of))
            found.append(LossOdds(loss=f"group {dim}", losses=groups.total(), survived=survived))
    return found


def _is_survived(lost: frozenset[int], guards_of: defaultdict[int, list[Guard]]) -> bool:
    hit = Counter(chain.from_iterable(guards_of[node] for node in lost))
    return all(nodes_lost <= guard.spare for guard, nodes_lost in hit.items())
