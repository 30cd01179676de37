"""Profiles of ranks' collectives that nodes send, and their comparison across ranks. Pure.

A profile is of one rank and small; the comparison joins all. Clocks of nodes differ, so times of different ranks are
never subtracted: the last rank's wait is the collective's own time, and any longer wait of another rank was for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

from holdfast.engines.slow.calls import CollectiveCall, IterationTime
from holdfast.engines.slow.period import IterationClock
from holdfast.engines.slow.slow_findings import GroupTime, RankWork
from holdfast.events.parts.samples import ProfiledCalls, RankProfile
from holdfast.events.parts.scalars import INTEGER_MAX, SECONDS_MAX
from holdfast.node.collectives.ring_layout import GroupEntry, RingRecord, ranks_of
from holdfast.node.ledger.ledger_layout import StepRecord
from holdfast.topology import Mesh

ITERATIONS_MAX = 32
KINDS_MAX = 16
OCCURRENCES_MAX = 24
STEPS_MIN = 3
"""Steps of a ledger below which a rank's iterations are inferred from its calls."""
HEALTHY_MIN = 3
"""Earlier iterations or occurrences needed to know what was usual."""


def waited_ns(record: RingRecord) -> int:
    """Return how long the rank waited in an operation; for an asynchronous one only since it began to wait for it."""
    return max(0, record.left_ns - record.waited_ns) if record.left_ns and record.waited_ns else 0


def calls_of(rank: int, records: Iterable[RingRecord], groups: Sequence[GroupEntry]) -> Iterable[CollectiveCall]:
    """Yield the records as calls, the input of the search for iterations."""
    for record in records:
        name = groups[record.group].name if record.group < len(groups) else ""
        yield CollectiveCall(
            rank=rank,
            sequence=record.index,
            operation=record.operation,
            group=name if record.peer is None else f"{name}:{record.peer}",
            bytes=record.bytes,
            entered_ns=record.entered_ns,
            # The time between the call and the wait for it is the rank's own work.
            exited_ns=record.entered_ns + waited_ns(record) if record.left_ns else 0,
        )


def iterations_by_steps(rank: int, steps: Sequence[StepRecord], records: Sequence[RingRecord]) -> list[IterationTime]:
    """Return the ledger's steps that the ring still covers, each with its time in collectives."""
    first_ns = records[0].entered_ns if records else 0
    waits = sorted((record.waited_ns, record.left_ns) for record in records if waited_ns(record))
    # The first step of a generation includes connections.
    known = [step for step in steps[1:] if step.ended_ns - step.duration_ns >= first_ns and step.duration_ns > 0]
    in_calls_ns = _covered(waits, [(step.ended_ns - step.duration_ns, step.ended_ns) for step in known])
    if known and not in_calls_ns[-1] and any(in_calls_ns):
        # DDP reports the last step's collectives only during the next one.
        known.pop()
    return [
        IterationTime(
            rank=rank,
            iteration=number,
            duration_s=step.duration_ns / 1e9,
            ended_ns=step.ended_ns,
            in_calls_s=in_calls_ns[number] / 1e9,
        )
        for number, step in enumerate(known)
    ]


def _covered(spans: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]]) -> list[int]:
    """Return how much of each window the spans cover; both are in order. Spans may overlap, as kernels do."""
    apart: list[tuple[int, int]] = []
    for begin, end in spans:
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((begin, end))
    covered, first = [], 0
    for window_begin, window_end in windows:
        while first < len(apart) and apart[first][1] <= window_begin:
            first += 1
        within = takewhile(lambda span: span[0] < window_end, islice(apart, first, None))  # noqa: B023 - used at once
        covered.append(sum(min(end, window_end) - max(begin, window_begin) for begin, end in within))
    return covered


def iterations_by_calls(rank: int, records: Sequence[RingRecord], groups: Sequence[GroupEntry]) -> list[IterationTime]:
    """Return iterations by repeating calls, for scripts whose steps are not visible."""
    clock = IterationClock(rank)
    inferred = [found for call in calls_of(rank, records, groups) if (found := clock.observe(call)) is not None]
    return [found for found in inferred if found.pattern == inferred[-1].pattern]


def profile_of(
    rank: int, steps: Sequence[StepRecord], records: Sequence[RingRecord], groups: Sequence[GroupEntry], last: int
) -> RankProfile:
    """Return a rank's profile: its `last` iterations, and what was usual before, small enough to send."""
    alike = iterations_by_steps(rank, steps, records)
    if len(alike) < STEPS_MIN:
        alike = iterations_by_calls(rank, records, groups)
    now = alike[-last:]
    since_ns = now[0].ended_ns - round(now[0].duration_s * 1e9) if now else 0
    kinds: dict[tuple[int, str, int], list[RingRecord]] = {}
    for record in records:
        if record.left_ns and record.waited_ns and not record.is_p2p and record.group < len(groups):
            kinds.setdefault((record.group, record.operation, record.bytes), []).append(record)
    calls = [
        _profiled(groups[group], operation, size, several, since_ns)
        for (group, operation, size), several in kinds.items()
    ]
    # Ties are broken by values that all ranks of a group share, so that they choose alike.
    calls.sort(key=lambda profiled: (-profiled.total_s, profiled.group, profiled.operation, profiled.bytes))
    return RankProfile(
        rank=rank,
        step=max(-1, min(steps[-1].step, INTEGER_MAX)) if steps else -1,
        iterations_s=tuple(found.duration_s for found in now),
        in_calls_s=tuple(found.in_calls_s or 0.0 for found in now),
        healthy_work_s=_usual([found.work_s or 0.0 for found in alike[:-last]]),
        healthy_s=_usual([found.duration_s for found in alike[:-last]]),
        calls=tuple(profiled for profiled in calls if profiled.seconds)[:KINDS_MAX],
    )


def _profiled(
    group: GroupEntry, operation: str, size: int, records: Sequence[RingRecord], since_ns: int
) -> ProfiledCalls:
    now = [record for record in records if record.entered_ns >= since_ns]
    before = [record for record in records if record.entered_ns < since_ns][-OCCURRENCES_MAX:]
    return ProfiledCalls(
        group=group.name,
        description=group.description,
        runs=group.runs,
        operation=operation,
        bytes=max(0, min(size, INTEGER_MAX)),
        sequences=tuple(record.sequence for record in now[-OCCURRENCES_MAX:]),
        seconds=tuple(waited_ns(record) / 1e9 for record in now[-OCCURRENCES_MAX:]),
        before=tuple(record.sequence for record in before),
        before_s=tuple(waited_ns(record) / 1e9 for record in before),
        count=len(now),
        total_s=min(sum(map(waited_ns, now)) / 1e9, SECONDS_MAX),
    )


def _usual(values: Sequence[float]) -> float:
    return statistics.median(values) if len(values) >= HEALTHY_MIN else 0.0


def group_times(profiles: Sequence[RankProfile], mesh: Mesh | None = None) -> list[GroupTime]:
    """Return the collectives of each group for which all its ranks have sent profiles."""
    sent: dict[tuple[str, tuple[tuple[int, int, int], ...], str, int], dict[int, ProfiledCalls]] = {}
    for profile in profiles:
        for calls in profile.calls:
            sent.setdefault((calls.group, calls.runs, calls.operation, calls.bytes), {})[profile.rank] = calls
    found: list[GroupTime] = []
    for (name, runs, operation, size), by_rank in sent.items():
        ranks = ranks_of(runs)
        if len(ranks) < 2 or any(rank not in by_rank for rank in ranks):
            continue
        rows = [dict(zip(by_rank[rank].sequences, by_rank[rank].seconds, strict=True)) for rank in ranks]
        least = _least(rows)
        if not least:
            continue
        usual = _least([dict(zip(by_rank[rank].before, by_rank[rank].before_s, strict=True)) for rank in ranks])
        found.append(
            GroupTime(
                group=name,
                kind=kind_of(ranks, mesh) or by_rank[ranks[0]].description,
                ranks=ranks,
                operation=operation,
                bytes=max(0, min(size, INTEGER_MAX)),
                transfer_s=statistics.median(least.values()),
                waiting_s=tuple(statistics.median(row[at] - least[at] for at in least) for row in rows),
                occurrences=len(least),
                healthy_s=_usual(list(usual.values())),
            )
        )
    return found


def _least(rows: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the last rank's wait, which is the shortest, for each occurrence that all ranks have."""
    common = set(rows[0]).intersection(*rows[1:])
    return {at: min(row[at] for row in rows) for at in common}


def kind_of(ranks: tuple[int, ...], mesh: Mesh | None) -> str:
    """Return the mesh dimension of the group with these ranks; "" if there is none."""
    if mesh is None or not ranks or max(ranks) >= mesh.world_size:
        return ""
    return next((dim for dim in mesh.names if tuple(mesh.group_of(ranks[0], dim)) == ranks), "")


def works(profiles: Sequence[RankProfile]) -> list[RankWork]:
    """Return each rank's time outside of collectives, over the last iterations that all ranks have."""
    usable = [profile for profile in profiles if profile.iterations_s]
    if not usable:
        return []
    number = min(len(profile.iterations_s) for profile in usable)
    return [
        RankWork(
            rank=profile.rank,
            work_s=tuple(
                max(0.0, took - waited)
                for took, waited in zip(profile.iterations_s[-number:], profile.in_calls_s[-number:], strict=True)
            ),
            healthy_s=profile.healthy_work_s,
        )
        for profile in usable
    ]
