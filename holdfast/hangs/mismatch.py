"""Members of one collective that do not mean the same by it: another operation, size or type. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import prod

import msgspec

from holdfast.hangs.collective_graph import WaitGraph
from holdfast.hangs.observed import CollectiveRecord, RankTrace
from holdfast.hangs.progress import UNKNOWN, Group

Meaning = tuple[str, str, int | None, int | None]

_SAME_SIZES = {
    "all_reduce": (True, True),
    "allreduce": (True, True),
    "broadcast": (True, True),
    "_all_gather_base": (True, True),
    "all_gather_into_tensor": (True, True),
    "_reduce_scatter_base": (True, True),
    "reduce_scatter_tensor": (True, True),
    "all_gather": (False, True),
    "allgather": (False, True),
    "reduce": (True, False),
}
"""Operations whose members all bring and take equally much: in, out."""


class Mismatch(msgspec.Struct, frozen=True):
    """An operation (index) whose members differ. `odd`: those who differ from the rest; all, where it is undecided."""

    operation: int
    odd: tuple[int, ...]
    decided: bool
    words: str


def meaning_of(record: CollectiveRecord) -> Meaning:
    """What has to be the same on all members: operation, type, elements in and out where these must agree."""
    compare_in, compare_out = _SAME_SIZES.get(record.operation, (False, False))
    return (
        record.operation,
        record.dtype,
        sum(map(prod, record.input_sizes)) if compare_in and record.input_sizes else None,
        sum(map(prod, record.output_sizes)) if compare_out and record.output_sizes else None,
    )


def mismatches(graph: WaitGraph, traces: Sequence[RankTrace]) -> list[Mismatch]:
    """The blocking collectives that members entered with different meanings. O(what is pending)."""
    siblings: defaultdict[tuple[str, int], Counter[Meaning]] = defaultdict(Counter)
    by_rank: dict[int, list[tuple[int, Meaning]]] = {}
    for index, operation in enumerate(graph.operations):
        if operation.is_p2p or operation.before is not None:
            continue
        found = []
        shapes: dict[tuple[object, ...], Meaning] = {}
        for rank in operation.joined:
            record = graph.records[rank, index]
            if record.operation == UNKNOWN:
                continue
            shape = (record.operation, record.dtype, record.input_sizes, record.output_sizes)
            meaning = shapes.get(shape)
            if meaning is None:
                meaning = shapes[shape] = meaning_of(record)
            found.append((rank, meaning))
        by_rank[index] = found
        siblings[operation.group.description, operation.sequence].update(meaning for _, meaning in found)
    result: list[Mismatch] = []
    for index, found in by_rank.items():
        counts = Counter(meaning for _, meaning in found)
        if len(counts) > 1:
            operation = graph.operations[index]
            beside = siblings[operation.group.description, operation.sequence]
            result.append(_mismatch(index, found, _weighed(counts, beside, operation.group, traces)))
    return result


def _weighed(
    counts: Counter[Meaning], beside: Counter[Meaning], group: Group, traces: Sequence[RankTrace]
) -> Counter[Meaning]:
    """How usual each meaning is: by the group's members, or in a tie by other groups of its kind, or by its past."""
    (_, first), (_, second), *_ = counts.most_common()
    if first != second:
        return counts
    elsewhere = Counter({meaning: beside[meaning] - counts[meaning] for meaning in counts})
    (_, first), (_, second), *_ = elsewhere.most_common()
    if first != second:
        return elsewhere
    members = set(group.ranks)
    past: Counter[Meaning] = Counter(dict.fromkeys(counts, 0))
    for trace in traces:
        if trace.rank in members:
            ended = (record for record in trace.records if record.group == group.name and record.state == "completed")
            past.update(meaning for record in ended if (meaning := meaning_of(record)) in counts)
    return past


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
