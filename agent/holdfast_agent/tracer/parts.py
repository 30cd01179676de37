"""Traces split into events of bounded size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.events.parts.traces import ProcessStacks, RankTrace

PART_BYTES_MAX = 500_000
"""Half the size limit of an event."""

ITEM_BYTES_MAX = 900_000
RECORDS_MAX = 1_000
_TOO_LONG = "its trace exceeds the size of an event"

T = TypeVar("T", bound=msgspec.Struct)
Cut = Callable[[T], T]


def stacks_in_parts(processes: Iterable[ProcessStacks]) -> list[tuple[ProcessStacks, ...]]:
    """Split stacks, see `_in_parts`. A process that is too large is reduced to its main thread, then to a note."""

    def without_others(process: ProcessStacks) -> ProcessStacks:
        return replace(process, threads=process.threads[:1])

    def without_stacks(process: ProcessStacks) -> ProcessStacks:
        return replace(process, threads=(), unread=_TOO_LONG, is_tracers_fault=True)

    return _in_parts(processes, (without_others, without_stacks))


def traces_in_parts(traces: Iterable[RankTrace]) -> list[tuple[RankTrace, ...]]:
    """Split traces, see `_in_parts`. Too large ones keep the newest records, then no group members, then a note."""

    def newest(trace: RankTrace) -> RankTrace:
        return replace(trace, records=trace.records[-RECORDS_MAX:])

    def without_members(trace: RankTrace) -> RankTrace:
        return replace(newest(trace), groups=tuple(replace(group, ranks=()) for group in trace.groups))

    def without_records(trace: RankTrace) -> RankTrace:
        return RankTrace(rank=trace.rank, node=trace.node, taken_ns=trace.taken_ns, unread=_TOO_LONG)

    return _in_parts(traces, (newest, without_members, without_records))


def _in_parts(items: Iterable[T], cuts: Iterable[Cut[T]]) -> list[tuple[T, ...]]:
    """Split items in order into one or more bounded parts (perhaps empty). Shorten an item that is too large."""
    parts: list[tuple[T, ...]] = []
    part: list[T] = []
    size = 0
    for whole in items:
        item, of_item = _fitting(whole, cuts)
        if part and size + of_item > PART_BYTES_MAX:
            parts.append(tuple(part))
            part, size = [], 0
        part.append(item)
        size += of_item
    if part or not parts:
        parts.append(tuple(part))
    return parts


def _fitting(item: T, cuts: Iterable[Cut[T]]) -> tuple[T, int]:
    size = len(msgspec.json.encode(item))
    for cut in cuts:
        if size <= ITEM_BYTES_MAX:
            break
        item = cut(item)
        size = len(msgspec.json.encode(item))
    return item, size
