"""Validation of suspects: the tests to run while training is held, and the verdict (GREYHOUND §4.3). Pure.

Computation: GEMM on the suspects and their peers, all at once. Communication: the links of a group's ring and tree, in
passes in which no rank takes part twice, so that their number does not depend on the group's size. Groups of one kind
share no rank and are tested side by side. A link is compared with the median of all; so that most of them do not end at
one bad machine, links of other machines are tested with them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import zip_longest

import msgspec

from holdfast.engines.slow.imbalance import STAGE_DIMENSION
from holdfast.engines.slow.slow_findings import (
    Pass,
    SlowNodeLink,
    SlowSuspects,
    Transfer,
    ValidationPlan,
    ValidationResults,
    ValidationVerdict,
)
from holdfast.topology import Topology

SLOWER_BY = 0.10  # GREYHOUND §4.3: over the median
SLOW_TURNS = 0.75
"""Share of turns in which a slow rank must be slow: a disturbance does not last that long."""
OF_SLOWEST_MIN = 0.1
"""Share of what the slowest rank takes more than its peers from which another rank is slow too. The job waits for the
slowest; one that takes a little longer, as on a busy machine, is not what makes it slow."""
LITTLE_MAX = 1.5
"""Ratio from which a rank is slow however slow another is: one that came through a single turn may only be disturbed,
and then its ratio is no measure for others."""
OWN_SHARE_MIN = 0.01
"""Smallest share of a turn that counts as the rank's own: the kernel's count of its waits may be a little later."""
WAITED_SHOWN_MIN = 0.1
"""Share of its turns for which a rank must have waited for a processor to be reported."""
LIKE_MAX = 8
"""Healthy ranks tested beside the suspects, for comparison."""


def ring_passes(ranks: Sequence[int]) -> tuple[Pass, ...]:
    """Return every link of the ring in two passes; a ring of odd size needs a third for the last link."""
    size = len(ranks)
    if size < 2:
        return ()
    even = tuple(_transfer(ranks, place, place + 1) for place in range(0, size - 1, 2))
    odd = tuple(_transfer(ranks, place, (place + 1) % size) for place in range(1, size - size % 2, 2))
    left_over = (_transfer(ranks, size - 1, 0),) if size % 2 else ()
    return tuple(found for found in (even, odd, left_over) if found)


def tree_passes(ranks: Sequence[int]) -> tuple[Pass, ...]:
    """Return every link of the binary tree, child to parent, in four passes: left and right children of even and odd
    levels. No rank sends and receives in one pass."""
    passes: list[list[Transfer]] = [[], [], [], []]
    for place in range(1, len(ranks)):
        level = (place + 1).bit_length() - 1
        is_right = place % 2 == 0
        passes[2 * (level % 2) + is_right].append(_transfer(ranks, place, (place - 1) // 2))
    return tuple(tuple(found) for found in passes if found)


def _transfer(ranks: Sequence[int], sender: int, receiver: int) -> Transfer:
    return Transfer(sender=ranks[sender], receiver=ranks[receiver])


def plan_validation(located: SlowSuspects, topology: Topology) -> ValidationPlan:
    """Return the tests; empty without suspects."""
    by_kind: dict[str, list[tuple[int, ...]]] = {}
    for found in located.suspicions:
        if found.cause == "communication" and found.ranks not in by_kind.setdefault(found.kind, []):
            by_kind[found.kind].append(found.ranks)
    tested: set[Transfer] = set()
    passes: list[Pass] = []
    for groups in by_kind.values():
        for batch in _disjoint(groups):
            for shape in (ring_passes, tree_passes):
                for together in zip_longest(*map(shape, batch), fillvalue=()):
                    new = tuple(transfer for of_group in together for transfer in of_group if transfer not in tested)
                    tested.update(new)
                    passes += [new] if new else []
    passes = _with_links(passes, _like_links(tested, topology), topology)
    suspects = located.ranks("computation")
    return ValidationPlan(compute_ranks=_with_like(suspects, topology), passes=tuple(passes))


def _like_links(tested: Iterable[Transfer], topology: Topology) -> list[tuple[int, int]]:
    """Return links between nodes, by node rank, until at most half of all end at any one node."""
    between = {
        (sender, receiver)
        for transfer in tested
        if (sender := topology.node_rank_of(transfer.sender)) != (receiver := topology.node_rank_of(transfer.receiver))
    }
    ends = Counter(node for link in between for node in link)
    most = max(ends.values(), default=0)
    lacking = max(0, 2 * most + 1 - len(between)) if between else 0
    nodes = sorted(range(topology.nnodes), key=lambda node: ends[node])
    found: list[tuple[int, int]] = []
    for distance in range(1, len(nodes)):
        for place, node in enumerate(nodes):
            link = node, nodes[(place + distance) % len(nodes)]
            if len(found) == lacking:
                return found
            if link not in between and max(ends[link[0]], ends[link[1]]) < most:
                found.append(link)
                ends.update(link)
    return found


def _with_links(passes: Sequence[Pass], links: Iterable[tuple[int, int]], topology: Topology) -> list[Pass]:
    """Return the passes with these links between nodes, each in the first pass in which both are idle."""
    busy = [{topology.node_rank_of(end) for one in found for end in (one.sender, one.receiver)} for found in passes]
    filled = [list(found) for found in passes]
    for link in links:
        place = next((number for number, nodes in enumerate(busy) if nodes.isdisjoint(link)), len(busy))
        if place == len(busy):
            busy.append(set())
            filled.append([])
        busy[place].update(link)
        sender, receiver = (topology.ranks_of(node).start for node in link)
        filled[place].append(Transfer(sender=sender, receiver=receiver))
    return [tuple(found) for found in filled]


def _disjoint(groups: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Divide groups into batches that share no rank; those of one mesh dimension are one batch."""
    batches: list[tuple[set[int], list[tuple[int, ...]]]] = []
    for group in groups:
        for ranks, batch in batches:
            if ranks.isdisjoint(group):
                ranks.update(group)
                batch.append(group)
                break
        else:
            batches.append((set(group), [group]))
    return [batch for _, batch in batches]


def _with_like(suspects: tuple[int, ...], topology: Topology) -> tuple[int, ...]:
    if not suspects:
        return ()
    mesh = topology.mesh
    stage: Callable[[int], int] = (
        (lambda rank: mesh.coordinates(rank)[STAGE_DIMENSION]) if STAGE_DIMENSION in mesh.names else (lambda rank: 0)
    )
    stages = {stage(rank) for rank in suspects}
    nodes = {topology.node_rank_of(rank) for rank in suspects}
    # The same GEMM takes as long on every rank: first ranks of the suspects' stages on other nodes, then any.
    like = sorted(
        (rank for rank in range(mesh.world_size) if rank not in suspects),
        key=lambda rank: (topology.node_rank_of(rank) in nodes, stage(rank) not in stages, rank),
    )
    # Most tested ranks must be healthy for the median to be.
    return tuple(sorted((*suspects, *like[: max(LIKE_MAX, len(suspects) + 1)])))


def judge_validation(
    results: ValidationResults,
    topology: Topology,
    compute_slower_by: float = SLOWER_BY,
    transfer_slower_by: float = SLOWER_BY,
) -> ValidationVerdict:
    """Judge the tests; no rank is slow if all results are alike and as fast as a known reference."""
    slow_ranks, slower_ranks, of_ranks = _slow_ranks(results, compute_slower_by)
    by_ranks = {*map(topology.node_rank_of, slow_ranks)}
    undisturbed = _without_ends(results, topology, {*map(topology.node_rank_of, slower_ranks)})
    slow_links, fast_links, of_links = _links(undisturbed, topology, transfer_slower_by)
    by_links = _nodes_of(slow_links, fast_links)
    nodes = tuple(sorted({*by_ranks, *by_links}))
    found: list[str] = []
    if slow_ranks:
        named = ", ".join(map(str, slow_ranks))
        found.append(f"ranks {named} compute slowly" if len(slow_ranks) > 1 else f"rank {named} computes slowly")
    if by_links:
        found += [f"every tested link of node {node} is slow, one way or both" for node in by_links]
    lone = [link for link in slow_links if link.sender not in by_links and link.receiver not in by_links]
    found += [f"the link from node {link.sender} to node {link.receiver} is slow" for link in lone]
    return ValidationVerdict(
        slow_ranks=slow_ranks,
        slow_links=slow_links,
        nodes=nodes,
        reason="; ".join(found) or _nothing_found(results),
        evidence=(*of_ranks, *of_links),
    )


def _slow_ranks(
    results: ValidationResults, slower_by: float
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Return slow ranks, all ranks slower than their peers in nearly every turn, and evidence.

    Load on a busy machine is not in all turns, ranks are compared with their peers at the same time, and of ranks that
    share processors only the time counts in which they had one.
    """
    turns = max(map(len, results.compute_s.values()), default=0)
    ratios: dict[int, list[float]] = {}
    for turn in range(turns):
        took = {rank: _own_s(results, rank, turn) for rank, of in results.compute_s.items() if turn < len(of)}
        usual_s = statistics.median_low(list(took.values()))
        if results.compute_reference_s > 0:
            usual_s = min(usual_s, results.compute_reference_s)
        for rank, took_s in took.items():
            ratios.setdefault(rank, []).append(took_s / usual_s)
    longer = {rank: sum(ratio > 1.0 + slower_by for ratio in of_rank) for rank, of_rank in ratios.items()}
    slower = [rank for rank, of_rank in ratios.items() if longer[rank] >= SLOW_TURNS * len(of_rank)]
    typical = {rank: statistics.median(ratios[rank]) for rank in slower}
    slower.sort(key=lambda rank: -typical[rank])
    least = min(LITTLE_MAX, 1.0 + OF_SLOWEST_MIN * (max(typical.values(), default=1.0) - 1.0))
    slow = tuple(sorted(rank for rank in slower if typical[rank] >= least))
    lines = [
        f"GEMM on rank {rank} takes {statistics.median(results.compute_s[rank]):.3g} s, {typical[rank]:.2f} times what "
        f"its peers take, longer in {longer[rank]} of {len(ratios[rank])} turns{_waits_in_words(results, rank)}"
        f"{'' if rank in slow else '; this is little compared with the slowest rank'}"
        for rank in slower
    ]
    waiting = (rank for rank in results.on_shared_machines if _waited_share(results, rank) >= WAITED_SHOWN_MIN)
    lines += [
        f"GEMM on rank {rank} takes as long as on its peers{_waits_in_words(results, rank)}"
        for rank in sorted(waiting)
        if rank not in slower
    ]
    return slow, tuple(slower), tuple(lines)


def _without_ends(results: ValidationResults, topology: Topology, nodes: Collection[int]) -> ValidationResults:
    """Return the results without transfers that a slow node had part in: it is slow there too, whatever its links are,
    and at the other end of each there is a node that is not.
    """
    of_others = [
        found
        for found in results.transfers
        if topology.node_rank_of(found.sender) not in nodes and topology.node_rank_of(found.receiver) not in nodes
    ]
    return msgspec.structs.replace(results, transfers=tuple(of_others))


def _nothing_found(results: ValidationResults) -> str:
    reason = "all that was tested is as fast as its peers"
    share = max((_waited_share(results, rank) for rank in results.on_shared_machines), default=0.0)
    return (
        f"{reason}, and waits for a processor for up to {share:.0%} of the time"
        if share >= WAITED_SHOWN_MIN
        else reason
    )


def _own_s(results: ValidationResults, rank: int, turn: int) -> float:
    """Return the seconds of a turn for which the rank itself is the reason."""
    took_s, waited_s = results.compute_s[rank][turn], results.compute_waited_s.get(rank, ())
    if rank not in results.on_shared_machines or turn >= len(waited_s):
        return took_s
    return max(took_s - waited_s[turn], OWN_SHARE_MIN * took_s)


def _waited_share(results: ValidationResults, rank: int) -> float:
    took_s = sum(results.compute_s.get(rank, ()))
    return sum(results.compute_waited_s.get(rank, ())) / took_s if took_s > 0 else 0.0


def _waits_in_words(results: ValidationResults, rank: int) -> str:
    share = _waited_share(results, rank)
    if share < WAITED_SHOWN_MIN:
        return ""
    if rank in results.on_shared_machines:
        return f", without the {share:.0%} of the time for which the processors of its machine were in use by others"
    return f"; it waited for a processor for {share:.0%} of the time: other processes of its machine used them"


def _links(
    results: ValidationResults, topology: Topology, slower_by: float
) -> tuple[tuple[SlowNodeLink, ...], list[tuple[int, int]], list[str]]:
    """Return slow links, links that are not slow, and evidence for the slow ones."""
    times: dict[tuple[int, int], list[float]] = {}
    for found in results.transfers:
        link = topology.node_rank_of(found.sender), topology.node_rank_of(found.receiver)
        times.setdefault(link, []).append(found.seconds)
    slow: list[SlowNodeLink] = []
    fast: list[tuple[int, int]] = []
    lines: list[str] = []
    for is_within in (True, False):
        # Other traffic does not disturb every transfer; a slow link is slow each time.
        took_s = {link: min(found) for link, found in times.items() if (link[0] == link[1]) is is_within}
        if not took_s:
            continue
        usual_s = statistics.median_low(list(took_s.values()))
        if not is_within and results.transfer_reference_s > 0:
            usual_s = min(usual_s, results.transfer_reference_s)
        for link, link_s in sorted(took_s.items(), key=lambda item: -item[1]):
            if link_s <= (1.0 + slower_by) * usual_s:
                fast.append(link)
                continue
            slow.append(SlowNodeLink(sender=link[0], receiver=link[1], ratio=link_s / usual_s))
            lines.append(
                f"node {link[0]} to node {link[1]}: {link_s:.3g} s, {link_s / usual_s:.2f} times the usual "
                f"{usual_s:.3g} s"
            )
    return tuple(slow), fast, lines


def _nodes_of(slow: Sequence[SlowNodeLink], fast: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return nodes that explain slow links: nodes with a slow link inside, and nodes with slow links to at least two
    others and no fast link in the same direction."""
    found = {link.sender for link in slow if link.sender == link.receiver}
    between = [(link.sender, link.receiver) for link in slow if link.sender != link.receiver]
    ends: dict[int, set[int]] = {}
    for sender, receiver in between:
        ends.setdefault(sender, set()).add(receiver)
        ends.setdefault(receiver, set()).add(sender)
    for node, others in ends.items():
        sends = any(sender == node for sender, _ in between)
        receives = any(receiver == node for _, receiver in between)
        is_cleared = any(
            sender != receiver and ((sends and sender == node) or (receives and receiver == node))
            for sender, receiver in fast
        )
        if len(others) > 1 and not is_cleared:
            found.add(node)
    return tuple(sorted(found))
