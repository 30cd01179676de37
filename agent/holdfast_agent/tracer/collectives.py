"""What a rank remembers of its collectives, read from the ring that it maps: also while it is stopped."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.collective_ring import RingError, RingReader, ring_path
from holdfast.hangs.observed import CollectiveRecord, RankTrace

RECORDS_PER_GROUP = 48
"""Ranks of a group that waits are a few operations apart; how far each has come stands beside the records."""


def trace_of(ledger: Path, rank: int, node: str, now_ns: int) -> RankTrace:
    """The last records of the rank with this ledger; if they cannot be read it says why."""
    try:
        ring = RingReader(ring_path(ledger))
    except FileNotFoundError:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread="it has no ring of collectives")
    except (RingError, OSError) as error:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread=str(error))
    try:
        return newest(ring.trace(node=node, taken_ns=now_ns))
    except (RingError, OSError) as error:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread=str(error))
    finally:
        ring.close()


def newest(trace: RankTrace) -> RankTrace:
    """The trace with the last records of each group, and those that have not ended."""
    left: dict[tuple[str, bool], int] = {}
    kept: list[CollectiveRecord] = []
    for record in reversed(trace.records):
        key = (record.group, record.is_p2p)
        left[key] = left.get(key, RECORDS_PER_GROUP) - 1
        if left[key] >= 0 or not record.ended_ns:
            kept.append(record)
    return msgspec.structs.replace(trace, records=tuple(reversed(kept)))


def with_recorder(ring: RankTrace, recorder: RankTrace) -> RankTrace:
    """The trace of a rank's ring, with what only its flight recorder has: operations that C++ has begun by itself."""
    if ring.unread:
        return msgspec.structs.replace(recorder, node=ring.node, taken_ns=ring.taken_ns)
    known = {(record.group, record.sequence) for record in ring.records if not record.is_p2p}
    more = [record for record in recorder.records if not record.is_p2p and (record.group, record.sequence) not in known]
    names = {group.name for group in ring.groups}
    return msgspec.structs.replace(
        ring,
        groups=(*ring.groups, *(group for group in recorder.groups if group.name not in names)),
        records=tuple(sorted((*ring.records, *more), key=lambda record: record.created_ns)),
        entered=_highest(ring.entered, recorder.entered),
        completed=_highest(ring.completed, recorder.completed),
    )


def _highest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one | other}
