"""Pairs of nodes that test their connection, and the verdict on the outcomes: a bad node or a bad partner. Pure.

In the first round each node meets its neighbour; then the pairs are mixed (ByteRobust §4.2: all-gather with
neighbouring machines). A node that fails with several partners which pass with others is bad. If a single connection
fails, either node or what lies between them may be at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

ROUNDS = 3
"""Partners per node: one failure can then be compared with two others."""

BAD_PARTNERS_MIN = 2
"""Failed partners from which a node is bad: a single failure has two ends."""

Pair = tuple[str, str]


def rounds(nodes: int, count: int = ROUNDS) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the pairs of each round, by node rank. No two nodes meet twice; with an odd number one sits out. The
    circle method: one place is fixed, the others rotate. Fewer rounds than `count` if all nodes have met."""
    if nodes < 2:
        return ()
    places = nodes + nodes % 2
    turning = places - 1
    rank_of: dict[int, int] = {}
    for number, (one, other) in enumerate(_turn(0, places)):
        rank_of |= {one: 2 * number, other: 2 * number + 1}
    mixed = []
    for turn in range(min(count, turning)):
        ranks = [tuple(sorted((rank_of[one], rank_of[other]))) for one, other in _turn(turn, places)]
        mixed.append(tuple(sorted((one, other) for one, other in ranks if other < nodes)))
    return tuple(mixed)


def partner(rank: int, pairs: Collection[tuple[int, int]]) -> int | None:
    """Return the node's partner in a round; None if it sits out."""
    for one, other in pairs:
        if rank in (one, other):
            return other if rank == one else one
    return None


def _turn(turn: int, places: int) -> list[tuple[int, int]]:
    turning = places - 1
    return [(turning, turn)] + [((turn + step) % turning, (turn - step) % turning) for step in range(1, places // 2)]


class PairFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on nodes from their connections."""

    bad: dict[str, tuple[str, ...]] = {}
    """Bad nodes, each with the partners that it failed with."""
    doubtful: dict[str, tuple[str, ...]] = {}
    """Nodes that failed with several partners, but not with all, each with these partners."""
    links: tuple[Pair, ...] = ()
    """Connections that are the only failure of their ends."""
    good: frozenset[str] = frozenset()


def judge_pairs(outcomes: Mapping[Pair, bool], known_bad: Collection[str] = ()) -> PairFindings:
    """Judge nodes by the pairs that passed. Failures of a known bad node are no evidence against its partners."""
    passed = [pair for pair, ok in outcomes.items() if ok]
    known_bad = frozenset(known_bad)
    good = frozenset(node for pair in passed for node in pair) - known_bad
    failed = {_sorted(pair) for pair, ok in outcomes.items() if not ok and known_bad.isdisjoint(pair)}
    bad = {
        node: partners
        for node, all_partners in _partners(failed).items()
        if node not in good
        and len(partners := tuple(other for other in all_partners if other in good)) >= BAD_PARTNERS_MIN
    }
    failed = {pair for pair in failed if not set(pair) & bad.keys()}
    partners_of = _partners(failed)
    doubtful = {
        node: partners
        for node, partners in partners_of.items()
        if len(partners) >= BAD_PARTNERS_MIN and all(len(partners_of[other]) == 1 for other in partners)
    }
    links = tuple(sorted(pair for pair in failed if not set(pair) & doubtful.keys()))
    return PairFindings(bad=bad, doubtful=doubtful, links=links, good=good)


def _partners(pairs: Collection[Pair]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = defaultdict(set)
    for one, other in pairs:
        found[one].add(other)
        found[other].add(one)
    return {node: tuple(sorted(partners)) for node, partners in sorted(found.items())}


def _sorted(pair: Pair) -> Pair:
    one, other = sorted(pair)
    return (one, other)
