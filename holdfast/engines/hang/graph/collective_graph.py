"""The wait-for graph of collectives and ranks (FT-HSDP §2.3). Pure.

Nodes are ranks and operations that have not ended. A rank waits for each operation that is pending on it. An operation
waits for the members that have not joined it, and for its group's previous operation. An operation that all members
have joined waits for what they began before it. Point-to-point operations from one rank to another are one node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from holdfast.engines.hang.graph.progress import (
    UNKNOWN,
    GroupProgress,
    PendingOperation,
    Progress,
    ends_together,
    is_pairwise,
    is_recorded,
)
from holdfast.events.parts.traces import CollectiveRecord


class Operation(msgspec.Struct):
    """A collective, or all that is pending between two ranks in one direction.

    `joined`, `missing` and `silent` partition the members.
    """

    group: GroupProgress
    sequence: int
    name: str
    is_p2p: bool
    joined: list[int] = []
    missing_here: list[int] = []
    """Missing members that have joined all earlier operations of the group."""
    silent: list[int] = []
    """Members about which nothing is known."""
    before: int | None = None
    started: set[int] = set()


class Lag(msgspec.Struct, frozen=True):
    """An operation that is pending on `rank` and has ended on others."""

    rank: int
    record: CollectiveRecord
    group: GroupProgress


class WaitGraph(msgspec.Struct):
    """The operations that are pending, and the ranks that wait in them."""

    progress: Progress
    operations: list[Operation]
    waits_in: dict[int, list[int]]
    """Each rank's operations in the order in which it began them, as indices of `operations`."""
    lags: dict[int, list[Lag]]
    records: dict[tuple[int, int], CollectiveRecord]
    more: dict[tuple[int, int | None], int]
    """Next message that only this rank has, by rank and by the message before it, which both ends have joined."""
    batches: defaultdict[tuple[int, str, int], list[int]]
    """Messages that a rank issued as one, by its key of the group and its sequence number; they end together."""

    def is_lost(self, rank: int, index: int) -> bool:
        """True if only a counter shows the operation in which `rank` waits."""
        record = self.records.get((rank, index))
        return record is not None and not is_recorded(record)

    def issued_with(self, index: int) -> set[int]:
        """Return the other messages of the batches that a message is part of, on either end."""
        operation = self.operations[index]
        if not operation.is_p2p:
            return set()
        found: set[int] = set()
        for rank in operation.joined:
            found.update(self.batches[rank, operation.group.key, self.records[rank, index].sequence])
        return found - {index}

    def missing(self, index: int) -> list[int]:
        """Return all members that have not joined an operation."""
        found: list[int] = []
        at: int | None = index
        while at is not None:
            found += self.operations[at].missing_here
            at = self.operations[at].before
        return found


def wait_graph(progress: Progress) -> WaitGraph:
    """Build the graph. O(pending operations + members of their groups)."""
    lags: dict[int, list[Lag]] = {}
    collectives: defaultdict[str, defaultdict[int, list[tuple[int, CollectiveRecord]]]]
    collectives = defaultdict(lambda: defaultdict(list))
    channels: defaultdict[tuple[str, int, int], dict[int, list[CollectiveRecord]]] = defaultdict(dict)
    done = {key: group.done_by_any() for key, group in progress.groups.items()}
    begun = {key: min(done[key], group.entered_by_all()) for key, group in progress.groups.items()}
    places: dict[tuple[str, int, int, int], int] = {}
    for rank, waits in progress.pending.items():
        for each in waits:
            key, record = each.group.key, each.record
            if record.is_p2p:
                if record.peer is not None:
                    channels[_channel(key, rank, record)].setdefault(rank, []).append(record)
            elif record.sequence <= (begun if is_pairwise(record.operation) else done)[key] and ends_together(
                record.operation
            ):
                lags.setdefault(rank, []).append(Lag(rank, record, each.group))
            else:
                collectives[key][record.sequence].append((rank, record))
    graph = WaitGraph(progress, [], {rank: [] for rank in progress.pending}, lags, {}, {}, defaultdict(list))
    for key, of_group in collectives.items():
        _add_collectives(graph, progress.groups[key], of_group, places)
    for (key, source, target), sides in channels.items():
        _add_channel(graph, progress.groups[key], source, target, sides, places)
    for rank, waits in progress.pending.items():
        own = list(dict.fromkeys(_places_of(rank, waits, places)))
        graph.waits_in[rank] = own + [graph.more[rank, place] for place in own if (rank, place) in graph.more]
    return graph


def _channel(key: str, rank: int, record: CollectiveRecord) -> tuple[str, int, int]:
    peer = -1 if record.peer is None else record.peer
    return (key, rank, peer) if record.operation == "send" else (key, peer, rank)


def _places_of(
    rank: int, waits: Iterable[PendingOperation], places: dict[tuple[str, int, int, int], int]
) -> Iterable[int]:
    for each in waits:
        key, record = each.group.key, each.record
        if record.is_p2p:
            place = places.get((*_channel(key, rank, record), -1)) if record.peer is not None else None
        else:
            place = places.get((key, record.sequence, -1, -1))
        if place is not None:
            yield place


def _add_collectives(
    graph: WaitGraph,
    group: GroupProgress,
    of_group: dict[int, list[tuple[int, CollectiveRecord]]],
    places: dict[tuple[str, int, int, int], int],
) -> None:
    sequences = sorted(of_group)
    traced = graph.progress.traced
    silent = [rank for rank in group.ranks if rank not in traced]
    missing: list[list[int]] = [[] for _ in sequences]
    for rank in group.ranks:
        if rank in traced:
            lacks = bisect_left(sequences, group.entered.get(rank, -1) + 1)
            if lacks < len(sequences):
                missing[lacks].append(rank)
    before: int | None = None
    for sequence, missing_here in zip(sequences, missing, strict=True):
        waiting = of_group[sequence]
        place = len(graph.operations)
        places[group.key, sequence, -1, -1] = place
        graph.operations.append(
            Operation(
                group=group,
                sequence=sequence,
                name=next((record.operation for _, record in waiting if is_recorded(record)), UNKNOWN),
                is_p2p=False,
                joined=[rank for rank, _ in waiting],
                missing_here=missing_here,
                silent=silent,
                before=before,
                started={rank for rank, record in waiting if record.state == "started"},
            )
        )
        for rank, record in waiting:
            graph.records[rank, place] = record
        before = place


def _add_channel(
    graph: WaitGraph,
    group: GroupProgress,
    source: int,
    target: int,
    sides: dict[int, list[CollectiveRecord]],
    places: dict[tuple[str, int, int, int], int],
) -> None:
    # The two ends count point-to-point operations separately, each with other peers as well. What is pending on both
    # sides pairs off; the side with more waits for the other.
    sent, received = sides.get(source, []), sides.get(target, [])
    paired = min(len(sent), len(received))
    traced = graph.progress.traced
    before: int | None = None
    if paired:
        before = len(graph.operations)
        graph.operations.append(_message(group, [source, target], sent[0], received[0]))
        graph.records[source, before], graph.records[target, before] = sent[0], received[0]
        graph.batches[source, group.key, sent[0].sequence].append(before)
        graph.batches[target, group.key, received[0].sequence].append(before)
        places[group.key, source, target, -1] = before
    if len(sent) == len(received):
        return
    waiting, rank, other = (sent, source, target) if len(sent) > paired else (received, target, source)
    place = len(graph.operations)
    graph.operations.append(_message(group, [rank], waiting[paired], before=before))
    last = graph.operations[place]
    (last.missing_here if other in traced else last.silent).append(other)
    graph.records[rank, place] = waiting[paired]
    graph.batches[rank, group.key, waiting[paired].sequence].append(place)
    graph.more[rank, before] = place
    if before is None:
        places[group.key, source, target, -1] = place


def _message(
    group: GroupProgress, joined: list[int], *records: CollectiveRecord, before: int | None = None
) -> Operation:
    started = {rank for rank, record in zip(joined, records, strict=True) if record.state == "started"}
    first = records[0]
    return Operation(group, first.sequence, first.operation, True, joined, [], [], before, started)
