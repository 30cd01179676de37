"""Collectives that members entered with different operations, sizes or types. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod

import msgspec

from holdfast.engines.hang.graph.collective_graph import Operation, WaitGraph
from holdfast.engines.hang.graph.progress import is_recorded
from holdfast.events.parts.traces import CollectiveRecord, RankTrace

_CONTEXT_MAX = 32
"""Number of previous operations that predict the next one."""

Meaning = tuple[str, str, int | None, int | None]

_SAME_SIZES = {
    "all_reduce": (True, True),
    "allreduce": (True, True),
    "allreduce_coalesced": (True, True),
    "all_gather_into_tensor_coalesced": (True, True),
    "all_gather_single": (True, True),
    "reduce_scatter_tensor_coalesced": (True, True),
    "reduce_scatter_single": (True, True),
    "reduce_scatter": (True, False),
    "broadcast": (True, True),
    "_all_gather_base": (True, True),
    "all_gather_into_tensor": (True, True),
    "_reduce_scatter_base": (True, True),
    "reduce_scatter_tensor": (True, True),
    "all_gather": (False, True),
    "allgather": (False, True),
    "reduce": (True, False),
}
"""Operations with the same number of elements on all members: in, out."""


class Mismatch(msgspec.Struct, frozen=True):
    """An operation (index) whose members differ. `odd`: the minority, or all members if undecided."""

    operation: int
    odd: tuple[int, ...]
    decided: bool
    words: str


def meaning_of(record: CollectiveRecord) -> Meaning:
    """Return what must be equal on all members: operation, type, and elements in and out where these must agree."""
    compare_in, compare_out = _SAME_SIZES.get(record.operation, (False, False))
    return (
        record.operation,
        record.dtype,
        sum(map(prod, record.input_sizes)) if compare_in and record.input_sizes else None,
        sum(map(prod, record.output_sizes)) if compare_out and record.output_sizes else None,
    )


def mismatches(graph: WaitGraph, traces: Sequence[RankTrace]) -> list[Mismatch]:
    """Return the blocking collectives that members entered with different meanings. O(records)."""
    differing: dict[int, list[tuple[int, Meaning]]] = {}
    for index, operation in enumerate(graph.operations):
        if operation.is_p2p or operation.before is not None:
            continue
        found = []
        shapes: dict[tuple[object, ...], Meaning] = {}
        for rank in operation.joined:
            record = graph.records[rank, index]
            if not is_recorded(record):
                continue
            shape = (record.operation, record.dtype, record.input_sizes, record.output_sizes)
            meaning = shapes.get(shape)
            if meaning is None:
                meaning = shapes[shape] = meaning_of(record)
            found.append((rank, meaning))
        if len(shapes) > 1 and len(set(shapes.values())) > 1:
            differing[index] = found
    counts = {index: Counter(meaning for _, meaning in found) for index, found in differing.items()}
    even = [index for index in counts if not _decides(counts[index])]
    beside = _beside(graph, even, traces) if even else {}
    for index in even:
        counts[index] = _weighed(counts[index], beside[index], graph.operations[index], traces)
    return [_mismatch(index, found, counts[index]) for index, found in differing.items()]


def _decides(counts: Counter[Meaning]) -> bool:
    (_, first), (_, second), *_ = counts.most_common()
    return first != second


def _beside(graph: WaitGraph, indices: Iterable[int], traces: Sequence[RankTrace]) -> dict[int, Counter[Meaning]]:
    """Count what members of other groups of the kind mean by the operation with the same number, ended or not."""
    wanted: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for index in indices:
        operation = graph.operations[index]
        wanted[operation.group.kind, operation.sequence].append(index)
    found: dict[int, Counter[Meaning]] = {index: Counter() for group in wanted.values() for index in group}
    sequences = {sequence for _, sequence in wanted}
    for trace in traces:
        local = graph.progress.local.get(trace.rank, {})
        for record in trace.records:
            if record.sequence not in sequences or record.is_p2p:
                continue
            group = local[record.group]
            for index in wanted.get((group.kind, record.sequence), ()):
                if graph.operations[index].group is not group:
                    found[index][meaning_of(record)] += 1
    return found


def _weighed(
    counts: Counter[Meaning], beside: Counter[Meaning], operation: Operation, traces: Sequence[RankTrace]
) -> Counter[Meaning]:
    """Weigh meanings that equally many members have. By other groups of the kind; else by what followed the same
    operations in the past; else by frequency."""
    elsewhere = Counter({meaning: beside[meaning] for meaning in counts})
    if _decides(elsewhere):
        return elsewhere
    members = set(operation.group.ranks)
    past: list[list[Meaning]] = []
    for trace in traces:
        if trace.rank in members:
            own = (record for record in trace.records if record.group == operation.group.name and not record.is_p2p)
            past.append([meaning_of(record) for record in own if record.sequence < operation.sequence])
    longest = max(past, key=len, default=[])
    for length in range(min(len(longest) - 1, _CONTEXT_MAX), -1, -1):
        context = longest[len(longest) - length :]
        after = Counter(dict.fromkeys(counts, 0))
        for at in range(length, len(longest)):
            if longest[at] in counts and longest[at - length : at] == context:
                after[longest[at]] += 1
        if _decides(after):
            return after
    return Counter(dict.fromkeys(counts, 0))


def _mismatch(index: int, found: Sequence[tuple[int, Meaning]], weights: Counter[Meaning]) -> Mismatch:
    ordered = weights.most_common()
    usual = ordered[0][0]
    decided = ordered[0][1] > ordered[1][1]
    odd = tuple(rank for rank, meaning in found if meaning != usual or not decided)
    example = next(meaning for _, meaning in found if meaning != usual)
    return Mismatch(index, odd, decided, f"{_words(example)} where the others have {_words(usual)}")


def _words(meaning: Meaning) -> str:
    operation, dtype, taken, given = meaning
    parts = [operation, dtype]
    if taken is not None:
        parts.append(f"of {taken} elements")
    if given is not None and given != taken:
        parts.append(f"into {given} elements" if taken is not None else f"of {given} elements")
    return " ".join(filter(None, parts))
