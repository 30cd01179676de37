"""Dumps of different moments: of an earlier hang, or of a job that went on while they were taken. Pure.

Most collectives end on no rank before all join: a dump whose rank has not joined one that ended in another is older.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from holdfast.engines.hang.graph.progress import Progress, ends_together, is_pairwise
from holdfast.events.parts.traces import RankTrace


def latest_of_each(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], list[int]]:
    """Return each rank's latest trace, and the ranks that have several."""
    by_rank: defaultdict[int, list[RankTrace]] = defaultdict(list)
    for trace in traces:
        by_rank[trace.rank].append(trace)
    several = sorted(rank for rank, own in by_rank.items() if sum(not trace.unread for trace in own) > 1)
    return [max(own, key=lambda each: (not each.unread, each.taken_ns)) for own in by_rank.values()], several


def outdated_ranks(traces: Sequence[RankTrace], progress: Progress) -> list[int]:
    """Return the ranks whose trace is older than what others have ended. O(records)."""
    through: dict[str, int] = {}
    for trace in traces:
        local = progress.local.get(trace.rank, {})
        for record in trace.records:
            operation = record.operation
            if record.state != "completed" or record.is_p2p or not ends_together(operation) or is_pairwise(operation):
                continue
            key = local[record.group].key
            through[key] = max(through.get(key, -1), record.sequence)
    return sorted(
        trace.rank
        for trace in traces
        if any(
            entered < through.get(progress.local[trace.rank][name].key, -1)
            for name, entered in trace.entered.items()
            if trace.rank in progress.local
        )
    )


def marked_unread(traces: Sequence[RankTrace], ranks: Sequence[int]) -> list[RankTrace]:
    """Return the traces; those of `ranks` are emptied, and marked as unread because they are older than the others."""
    gone = set(ranks)
    return [
        msgspec.structs.replace(trace, groups=(), records=(), entered={}, completed={}, unread="older than the others")
        if trace.rank in gone
        else trace
        for trace in traces
    ]
