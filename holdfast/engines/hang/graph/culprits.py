"""Ends of waiting chains, and the fewest ranks that explain several of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import Literal, TypeVar

import msgspec

from holdfast.engines.hang.graph.collective_graph import WaitGraph
from holdfast.engines.hang.graph.cycles import closed_circles
from holdfast.engines.hang.graph.launch_order import out_of_order
from holdfast.engines.hang.graph.progress import GroupProgress
from holdfast.engines.wording import ranks_in_words

T = TypeVar("T", bound=Hashable)

Places = Callable[[Iterable[int]], set[str]]
"""The machines of ranks; each rank is its own where machines are unknown."""


class ChainEnds(msgspec.Struct):
    """Ends of waiting chains."""

    ranks: dict[int, int] = {}
    """Each with the operation in which most ranks wait for it."""
    operations: list[int] = []
    circles: list[tuple[list[int], list[int]]] = []
    """Ranks and operations that wait for each other."""
    exchanges: list[list[int]] = []
    """Messages that both ends have joined and that end together."""
    lost: list[int] = []
    """Operations without the ranks whose traces are missing."""


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of which at least one is at fault. `operation`: the one that shows it; `because`: all that do."""

    ranks: tuple[int, ...]
    kind: Literal["never_joined", "joined_not_moving", "no_dump"]
    operation: int
    because: tuple[int, ...]
    confidence: float
    words: tuple[str, ...] = ()


def chain_ends(graph: WaitGraph, apart: set[int], settled: set[int], waiting: Set[int]) -> ChainEnds:
    """Follow every chain to its end. `waiting`: ranks without a trace that are known to wait. `apart`: ranks known to
    be at fault, which therefore wait for no other rank. `settled`: operations whose members differ; chains end there
    without further suspects."""
    operations = graph.operations
    # An operation is the node -1 - index, a rank its own number.
    out: dict[int, list[int]] = {rank: [] if rank in apart else waits for rank, waits in graph.waits_in.items()}
    out = {rank: [-1 - index for index in waits] for rank, waits in out.items()}
    late: defaultdict[str, set[int]] = defaultdict(set)
    for rank in apart.intersection(graph.lags):
        for lag in graph.lags[rank]:
            late[lag.group.key].add(rank)
    for index, operation in enumerate(operations):
        edges = [*operation.missing_here, *late.get(operation.group.key, ())]
        if index in settled:
            edges = []
        elif operation.before is not None:
            edges.append(-1 - operation.before)
        elif not edges:
            # Within a batch nothing comes first, and a message ends when the whole batch on either end has arrived.
            batch = graph.issued_with(index)
            earlier = _begun_before(graph, index) - batch
            edges = [-1 - other for other in (earlier if operation.silent else earlier | batch)]
        out[-1 - index] = edges
    into: defaultdict[int, list[int]] = defaultdict(list)
    for node, edges in out.items():
        for target in edges:
            into[target].append(node)
    lost = {
        -1 - index
        for index, operation in enumerate(operations)
        if operation.silent and waiting >= set(operation.silent) and not _idle(operation.joined, operation.started)
    }
    lost = {node for node in lost if not out[node] and -1 - node not in settled}
    last = [node for node, edges in out.items() if not edges and (node < 0 or into[node]) and node not in lost]
    explained = set(last)
    todo = list(last)
    while todo:
        for node in into[todo.pop()]:
            if node not in explained:
                explained.add(node)
                todo.append(node)
    found = ChainEnds(
        lost=sorted(-1 - node for node in lost),
        operations=sorted(-1 - node for node in last if node < 0 and -1 - node not in settled),
    )
    for rank in last:
        if rank >= 0:
            found.ranks[rank] = max((-1 - node for node in into[rank]), key=lambda index: len(operations[index].joined))
    left = {node: edges for node, edges in out.items() if node not in explained and edges}
    for circle in closed_circles(left):
        ranks, of_circle = [node for node in circle if node >= 0], sorted(-1 - node for node in circle if node < 0)
        if ranks:
            found.circles.append((ranks, of_circle))
        else:
            found.exchanges.append(of_circle)
    return found


def _begun_before(graph: WaitGraph, index: int) -> set[int]:
    """Return what the members of an operation that all have joined began before it: the first, and the previous one.
    Nothing shows the order of operations that have no record left."""
    found: set[int] = set()
    for rank in graph.operations[index].joined:
        waits = graph.waits_in[rank]
        if graph.is_lost(rank, index):
            found.update(other for other in waits if other != index and graph.is_lost(rank, other))
        elif waits[0] != index:
            found.add(waits[0])
            found.add(waits[waits.index(index) - 1])
    return found


def joined_candidates(graph: WaitGraph, index: int, waiting: Set[int], places: Places) -> Candidates:
    """Return the possible culprits where all ranks with a trace have joined an operation that does not end. Traces that
    are missing on one machine point to it. Missing on several, they only show that those ranks are stuck on their
    device, as any member is while one holds the operation up: then it is the group, or the member whose device has
    not begun."""
    operation = graph.operations[index]
    joined = operation.joined
    idle = _idle(joined, operation.started)
    # Ranks without a trace that wait like others are as innocent as those.
    if operation.silent and not (idle and waiting >= set(operation.silent)):
        ranks = tuple(rank for rank in operation.silent if rank not in waiting)
        if ranks and len(places(ranks)) == 1:
            return _without_dump(ranks, (index,))
        if len(idle) == 1:
            return msgspec.structs.replace(_not_moving(graph, (index,)), confidence=0.6)
        why = "on several machines" if ranks else "which wait like the others"
        return Candidates(
            ranks=tuple(sorted((*joined, *operation.silent))),
            kind="joined_not_moving",
            operation=index,
            because=(index,),
            confidence=0.4,
            words=(f"no trace of {ranks_in_words(operation.silent)}, {why}",),
        )
    if operation.group.is_inferred and (unplaced := _unplaced(graph, operation.group)):
        return Candidates(
            ranks=tuple(unplaced),
            kind="never_joined",
            operation=index,
            because=(index,),
            confidence=0.5,
            words=(f"no dump lists the members of the group; {ranks_in_words(unplaced)} mention none of its kind",),
        )
    return _not_moving(graph, (index,))


def exchange_candidates(graph: WaitGraph, indices: Sequence[int], waiting: Set[int]) -> Candidates:
    """Return the possible culprits of operations that were issued together, or in an unknown order, and do not end."""
    silent = sorted({rank for index in indices for rank in graph.operations[index].silent} - waiting)
    if silent:
        return _without_dump(silent, tuple(indices))
    joined = sorted({rank for index in indices for rank in graph.operations[index].joined})
    return out_of_order_candidates(graph, joined, indices[0], tuple(indices[:16])) or _not_moving(graph, tuple(indices))


def _without_dump(ranks: Sequence[int], indices: tuple[int, ...]) -> Candidates:
    return Candidates(
        ranks=tuple(ranks),
        kind="no_dump",
        operation=indices[0],
        because=indices[:16],
        confidence=0.85 if len(ranks) == 1 else 0.6,
        words=(f"no dump of {ranks_in_words(ranks)}; all others have joined",),
    )


def _not_moving(graph: WaitGraph, indices: tuple[int, ...]) -> Candidates:
    joined = sorted({rank for index in indices for rank in graph.operations[index].joined})
    started = {rank for index in indices for rank in graph.operations[index].started}
    idle = _idle(joined, started)
    behind = _behind(graph, set(joined), indices)
    if idle:
        ranks, confidence = tuple(idle), 0.85
        words = (f"its kernel has not started on {ranks_in_words(idle)}",)
    elif behind:
        ranks, confidence = tuple(behind), 0.75
        words = (f"{ranks_in_words(behind)} came less far than the others that wait in it",)
    else:
        ranks, confidence, words = tuple(joined), 0.5, ("nothing in the traces tells its members apart",)
    return Candidates(
        ranks=ranks,
        kind="joined_not_moving",
        operation=indices[0],
        because=indices[:16],
        confidence=confidence if len(ranks) == 1 else min(confidence, 0.6),
        words=words,
    )


def _idle(joined: Sequence[int], started: Set[int]) -> list[int]:
    """Return the few members on whose device the operation's kernel has not started while it has on the others'."""
    idle = [rank for rank in joined if rank not in started]
    return idle if started and 2 * len(idle) <= len(joined) else []


def _unplaced(graph: WaitGraph, group: GroupProgress) -> list[int]:
    """Return ranks that wait for no other and mention no group like `group`: possibly its missing members."""
    placed = {
        rank
        for other in graph.progress.groups.values()
        if other.description == group.description
        for rank in other.entered
    }
    return sorted(rank for rank, waits in graph.waits_in.items() if not waits and rank not in placed)


def _behind(graph: WaitGraph, members: set[int], indices: Sequence[int]) -> list[int]:
    """Return the few members that the other members wait for in a later collective as well."""
    behind: set[int] = set()
    for other in {other for rank in members for other in graph.waits_in[rank]}.difference(indices):
        if not graph.operations[other].is_p2p:
            behind.update(members.intersection(graph.missing(other)))
    return sorted(behind) if 2 * len(behind) < len(members) else []


def lost_candidates(graph: WaitGraph, lost: Sequence[int], waiting: Set[int], places: Places) -> list[Candidates]:
    """Return the possible culprits where every chain leads to ranks without a trace that wait like others."""
    if not lost:
        return []
    # Such operations have only the lost trace in common.
    unknown = [joined_candidates(graph, index, waiting, places) for index in lost]
    ranks = tuple(sorted({rank for each in unknown for rank in each.ranks}))
    return [msgspec.structs.replace(unknown[0], ranks=ranks, because=tuple(lost[:16]))]


def skipping_candidates(graph: WaitGraph) -> Candidates | None:
    """Return the few ranks that a collective lacks and that did things in another order than their peers."""
    missed: dict[int, int] = {}
    for index, operation in enumerate(graph.operations):
        # Most silent ranks have joined, like those with a trace.
        others = len(operation.joined) + len(operation.silent)
        if not operation.is_p2p and 2 * len(operation.missing_here) < others:
            missed.update(dict.fromkeys(operation.missing_here, index))
    found = out_of_order_candidates(graph, sorted(missed), 0, ()) if missed else None
    if found is None:
        return None
    because = tuple(sorted({missed[rank] for rank in found.ranks}))
    return msgspec.structs.replace(found, operation=because[0], because=because)


def out_of_order_candidates(
    graph: WaitGraph, ranks: Sequence[int], shown: int, because: tuple[int, ...]
) -> Candidates | None:
    """Return those of `ranks` that did things in another order than their peers; None if no rank did, or too many."""
    crossed = out_of_order(graph, ranks)
    most = max(crossed.values(), default=0)
    odd = [rank for rank in ranks if crossed[rank] == most]
    if not most or (2 * len(odd) >= len(ranks) and len(odd) > 1):
        return None
    return Candidates(
        ranks=tuple(sorted(odd)),
        kind="never_joined",
        operation=shown,
        because=because,
        confidence=0.85 if len(odd) == 1 else 0.6,
        words=(f"{ranks_in_words(odd)} entered collectives in another order than its peers, or left one out",),
    )


def circle_candidates(graph: WaitGraph, circle: tuple[list[int], list[int]], waiting: Set[int]) -> Candidates:
    """Return the ranks that break a circle: those out of order, else those most often alone in joining or missing."""
    ranks, operations = circle
    shown = max(operations, key=lambda index: len(graph.operations[index].joined))
    because = tuple(operations[:16])
    silent = sorted({rank for index in operations for rank in graph.operations[index].silent} - waiting)
    if silent:
        return Candidates(
            ranks=tuple(silent), kind="no_dump", operation=shown, because=because, confidence=0.5, words=("no dump",)
        )
    concerned = sorted({*ranks, *(rank for index in operations for rank in graph.operations[index].joined)})
    if found := out_of_order_candidates(graph, concerned, shown, because):
        return found
    within = set(ranks)
    alone: Counter[int] = Counter()
    for index, operation in enumerate(graph.operations):
        missing = [] if operation.is_p2p else graph.missing(index)
        few, many = sorted((operation.joined, missing), key=len)
        if few and len(few) < len(many):
            alone.update(within.intersection(few))
    most = max(alone.values(), default=0)
    odd = [rank for rank in ranks if alone[rank] == most]
    if most and len(odd) < len(ranks):
        words = f"{ranks_in_words(odd)} is alone in {most} collectives with what it joined or did not join"
        return Candidates(
            ranks=tuple(odd),
            kind="never_joined",
            operation=shown,
            because=because,
            confidence=0.8 if len(odd) == 1 else 0.5,
            words=(words,),
        )
    return Candidates(
        ranks=tuple(sorted(ranks)),
        kind="never_joined",
        operation=shown,
        because=because,
        confidence=0.4,
        words=(f"{ranks_in_words(ranks)} wait for each other in a circle",),
    )


def fewest_culprits(found: Sequence[Candidates], node_of: Callable[[int], str]) -> list[Candidates]:
    """Return the fewest ranks, or else machines, that explain all of `found`. Several operations that do not end seldom
    have a cause each, so their common ranks are suspected."""
    if len(found) < 2:
        return list(found)
    by_rank = _cover([set(each.ranks) for each in found])
    by_node = _cover([{node_of(rank) for rank in each.ranks} - {""} for each in found])
    use_nodes = by_node is not None and (by_rank is None or len(by_node) < len(by_rank))
    cover = by_node if use_nodes else by_rank
    if cover is None:
        return list(found)
    result: list[Candidates] = []
    for chosen, covered in cover:
        parts = [found[index] for index in covered]
        ranks = {rank for each in parts for rank in each.ranks if (node_of(rank) if use_nodes else rank) in chosen}
        best = max(parts, key=lambda each: each.confidence)
        what = "machine" if use_nodes else "ranks"
        shared = f"the only {what} that all {len(parts)} operations that do not end have in common"
        is_one = len(chosen) == 1
        result.append(
            msgspec.structs.replace(
                best,
                ranks=tuple(sorted(ranks)),
                because=tuple(index for each in parts for index in each.because)[:16],
                confidence=round(min(0.9, best.confidence + (0.2 if is_one and len(parts) > 1 else 0.0)), 2),
                words=(*best.words, shared) if len(parts) > 1 else best.words,
            )
        )
    return result


def _cover(sets: list[set[T]]) -> list[tuple[set[T], list[int]]] | None:
    """Return, greedily, the fewest values that hit every set: each with its equals, and the sets that they hit."""
    if not all(sets):
        return None
    left = dict(enumerate(sets))
    cover: list[tuple[set[T], list[int]]] = []
    while left:
        hits: defaultdict[T, list[int]] = defaultdict(list)
        for index, values in left.items():
            for value in values:
                hits[value].append(index)
        most = max(map(len, hits.values()))
        covered = next(indices for indices in hits.values() if len(indices) == most)
        cover.append(({value for value, indices in hits.items() if indices == covered}, covered))
        for index in covered:
            del left[index]
    return cover
