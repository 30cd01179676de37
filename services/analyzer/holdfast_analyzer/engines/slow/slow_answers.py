"""Checks that an answer about a slow job can be one of that job's nodes. Pure.

Any process on the bus can answer. A rank that does not exist, or a group of 10^12 ranks, would end the analyzer.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.events import CollectivesProfiled, SlownessTested
from holdfast.events.parts.job import RANKS_MAX
from holdfast.events.parts.samples import ProfiledCalls, RankProfile

TIME_S_MAX = 1e7


def fits(profile: CollectivesProfiled, others: Iterable[CollectivesProfiled]) -> bool:
    """Return True if a node profiles its own ranks only, in a job of the same shape as the others report."""
    world = profile.nnodes * profile.nproc_per_node
    if not 0 < world <= RANKS_MAX or profile.node_rank >= profile.nnodes:
        return False
    if any(_shape(other) != _shape(profile) for other in others):
        return False
    own = _ranks(profile)
    return all(rank.rank in own and _can_be(rank, world) for rank in profile.ranks)


def was_measured_by(tested: SlownessTested, profile: CollectivesProfiled | None) -> bool:
    """Return True if the measurements come from the node that profiled these ranks."""
    if profile is None or profile.node != tested.node:
        return False
    own, node_rank = _ranks(profile), tested.node_rank
    return (
        all(rank in own and 0 < took_s <= TIME_S_MAX for rank, took_s in tested.compute_s)
        and all(
            rank in own and all(0 < took_s <= TIME_S_MAX for took_s in turns_s)
            for rank, turns_s in tested.compute_turns_s
        )
        and all(rank in own and _are_times(waited_s) for rank, waited_s in tested.compute_waited_s)
        and all(
            sender == node_rank and receiver < profile.nnodes and 0 < took_s <= TIME_S_MAX
            for sender, receiver, took_s in tested.transfers
        )
        and set(tested.held) <= set(own)
        and _are_times((tested.took_s, tested.held_s))
    )


def _shape(profile: CollectivesProfiled) -> tuple[int, int, str | None]:
    return profile.nnodes, profile.nproc_per_node, profile.mesh


def _ranks(profile: CollectivesProfiled) -> range:
    first = profile.node_rank * profile.nproc_per_node
    return range(first, first + profile.nproc_per_node)


def _can_be(rank: RankProfile, world: int) -> bool:
    times = (*rank.iterations_s, *rank.in_calls_s, rank.healthy_s, rank.healthy_work_s)
    return (
        len(rank.iterations_s) == len(rank.in_calls_s)
        and _are_times(times)
        and all(_can_be_called(calls, world) for calls in rank.calls)
    )


def _can_be_called(calls: ProfiledCalls, world: int) -> bool:
    return (
        sum(count for _, count, _ in calls.runs) <= world
        and all(
            count and 0 <= end < world
            for first, count, stride in calls.runs
            for end in (first, first + (count - 1) * stride)
        )
        and len(calls.sequences) == len(calls.seconds)
        and len(calls.before) == len(calls.before_s)
        and _are_times((*calls.seconds, *calls.before_s, calls.total_s))
    )


def _are_times(times: Iterable[float]) -> bool:
    return all(0.0 <= time_s <= TIME_S_MAX for time_s in times)
