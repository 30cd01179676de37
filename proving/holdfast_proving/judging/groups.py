"""Judges of over-eviction: a convincing group goes at the first hang if it can be replaced, and stays if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.events import ChecksStarted, Eviction, HangFound, NodeStateChanged
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History

AT_ONCE_S = 30.0
ANEW_S = 600.0
"""Hangs of a job that are further apart are no repetition of one another."""


class _Hang(NamedTuple):
    at_s: float
    event: HangFound
    free: int
    """Machines that were free then."""
    is_first: bool


def kept_groups(history: History) -> Iterator[Complaint]:
    """Complain about machines that stay though the group which they block was found, and could be replaced."""
    for at_s, event, free, is_first in _hangs(history):
        if not is_first or not event.group or free < len(event.group):
            continue
        for node in event.group:
            is_culprit = any(
                fault.culprit == node and fault.kind.effect == "hang" for fault in history.ledger.of_machine(node, at_s)
            )
            if is_culprit and not history.left(node, event.job or "", at_s, at_s + AT_ONCE_S):
                text = f"it is one of {', '.join(event.group)}, and {free} machines were free"
                yield Complaint(wrong=Wrong.GROUP_STAYS, at_s=at_s, job=event.job or "", node=node, text=text)


def unreplaced_groups(history: History) -> Iterator[Complaint]:
    """Complain about groups that left at a hang though fewer machines were free, and nothing else had been tried."""
    checked = [(at_s, it.job) for at_s, it in history.of(ChecksStarted)]
    evictions = [(at_s, it) for at_s, it in history.evictions if it.together and it.node == it.together[0]]
    for hang in _hangs(history):
        left = _evicted_for(evictions, hang)
        was_checked = any(job == hang.event.job and hang.at_s - ANEW_S <= at_s <= hang.at_s for at_s, job in checked)
        if left is not None and len(left.together) > hang.free and not was_checked:
            text = f"{len(left.together)} machines left, and {hang.free} were free"
            yield Complaint(wrong=Wrong.GROUP_UNREPLACED, at_s=hang.at_s, job=left.job or "", text=text)


def _evicted_for(evictions: list[tuple[float, Eviction]], hang: _Hang) -> Eviction | None:
    for at_s, event in evictions:
        if event.job == hang.event.job and 0.0 <= at_s - hang.at_s <= AT_ONCE_S:
            return event
    return None


def _hangs(history: History) -> Iterator[_Hang]:
    """Return the hangs that were found, in order, each with the number of machines that were free then."""
    free: set[str] = set()
    last_s: dict[str, float] = {}
    for at_s, event in history.cluster.log:
        if isinstance(event, NodeStateChanged) and event.node:
            (free.add if event.new_state == "standby" else free.discard)(event.node)
        elif isinstance(event, HangFound):
            job = event.job or ""
            yield _Hang(at_s, event, len(free), at_s - last_s.get(job, -ANEW_S) >= ANEW_S)
            last_s[job] = at_s
