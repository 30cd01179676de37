"""The inputs of a job's decisions, in the order in which the controller took them, from the record. Pure.

The record has events and decisions, but neither requests nor the passing of time. Both show in what was decided: a
request by its author in the reason, passed time by a decision that follows from no event and no request.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast.events import (
    AnyEvent,
    BreakerReset,
    CodeJudged,
    DeadlinePassed,
    Event,
    FailSlowLocated,
    FailSlowOnset,
    GenerationStarted,
    Inspection,
    JobStopping,
    JobSubmitted,
    MfuDeclined,
    NodeStateChanged,
    SuspectsTested,
    UpdatePlanned,
    UpdateWithdrawn,
)
from holdfast.node.rank_variables import RESTORE_STEP
from holdfast.requests import AnyRequest, CodeOffer, ResetBreaker, RollbackJob, StopJob, SubmitJob, UpdateJob

ASKED_BY = "asked by "
AT_ONCE = timedelta(seconds=0.4)
"""Longest time between an event and the decision about it; the controller looks at the clock every half second."""


class Seen(NamedTuple):
    """A recorded event. `handled_at`: when the controller handled it, by the database's clock; None: not known."""

    event: AnyEvent
    handled_at: datetime | None


class Input(NamedTuple):
    """One input, and what was decided at it."""

    at: datetime
    """When it was decided, by the controller's clock as far as it is known."""
    event: AnyEvent | None
    """None if the input was a request or the passing of time."""
    request: AnyRequest | None
    decided: tuple[Event, ...]
    had_effect: bool | None = None
    """True if the controller changed anything for it; None: not known."""


def inputs_of(seen: Sequence[Seen], decisions: Iterable[Event]) -> list[Input]:
    """Return the inputs of one job. `decisions` are the events that the controller emitted for it."""
    groups = _groups(decisions)
    taken: dict[str, _Group] = {}
    alone: list[_Group] = []
    known = {it.event.id: it for it in seen}
    for group in groups:
        # A pause that ends names the event before it as its cause, as the decision to pause did.
        if group.cause in known and group.cause not in taken and not _came_later(group, known[group.cause]):
            taken[group.cause] = group
        else:
            alone.append(group)
    clock = _Clock([(taken[it.event.id].at, it.handled_at) for it in seen if it.event.id in taken and it.handled_at])
    # The inbox has every event that had an effect, as far back as it goes.
    inbox = [it.handled_at for it in seen if it.handled_at]
    oldest, newest = min(inbox, default=None), max(inbox, default=None)
    placed: list[tuple[datetime, int, Input]] = []
    for it in seen:
        own = taken.get(it.event.id)
        handled = it.handled_at or clock.handled(own.at if own else it.event.at)
        at = own.at if own else clock.decided(handled) if it.handled_at else it.event.at
        is_covered = bool(oldest and newest and oldest < handled < newest)
        had_effect = True if it.handled_at or own else False if is_covered else None
        placed.append((handled, 1, Input(at, it.event, None, own.events if own else (), had_effect)))
    first = _first_start(groups)
    for group in alone:
        placed.append((clock.handled(group.at), 0, Input(group.at, None, _request(group, first), group.events)))
    placed.sort(key=lambda entry: (entry[0], entry[1], entry[2].event.id if entry[2].event else ""))
    return [entry[2] for entry in placed]


def _came_later(group: _Group, cause: Seen) -> bool:
    """Return True if time passed between an event and the decision that names it: a slow machine is replaced once it
    has cost enough, and a job grows once nodes that came free have been missed for long enough, never before the next
    look at the clock. One that an alert names leaves once no other has reported the same, or at once.
    """
    if isinstance(cause.event, Inspection):
        return group.at - (cause.handled_at or cause.event.at) > AT_ONCE
    return isinstance(cause.event, FailSlowOnset | FailSlowLocated | MfuDeclined | NodeStateChanged)


class _Group(NamedTuple):
    """Decisions that were made together."""

    cause: str
    at: datetime
    events: tuple[Event, ...]


def _groups(decisions: Iterable[Event]) -> list[_Group]:
    found: dict[tuple[str, datetime], list[Event]] = defaultdict(list)
    deadlines: dict[str, datetime] = {}
    # Ids of one decision sort by their place in it.
    for event in sorted(decisions, key=lambda event: event.id):
        if isinstance(event, DeadlinePassed):
            deadlines[event.id] = event.at
            found[event.id, event.at].append(event)
        else:
            found[event.cause or event.id, event.at].append(event)
    groups = [_Group("" if cause in deadlines else cause, at, tuple(events)) for (cause, at), events in found.items()]
    # What a test of evicted nodes found about this job was decided by the job that tested them.
    own = (group for group in groups if not any(isinstance(event, SuspectsTested) for event in group.events))
    return sorted(own, key=lambda group: group.at)


class _Clock:
    """The database's clock beside the controller's: they may differ, and either may be set."""

    def __init__(self, pairs: Iterable[tuple[datetime, datetime]]) -> None:
        by_decided = sorted(pairs)
        self._decided = [(decided, handled - decided) for decided, handled in by_decided]
        self._handled = sorted((handled, handled - decided) for decided, handled in by_decided)

    def handled(self, decided: datetime) -> datetime:
        return decided + _nearest(self._decided, decided)

    def decided(self, handled: datetime) -> datetime:
        return handled - _nearest(self._handled, handled)


def _nearest(offsets: Sequence[tuple[datetime, timedelta]], at: datetime) -> timedelta:
    if not offsets:
        return timedelta()
    index = bisect.bisect_left(offsets, (at,))
    near = offsets[max(0, index - 1) : index + 1]
    return min(near, key=lambda pair: abs(pair[0] - at))[1]


def _first_start(groups: Iterable[_Group]) -> GenerationStarted | None:
    events = itertools.chain.from_iterable(group.events for group in groups)
    return next((event for event in events if isinstance(event, GenerationStarted)), None)


def _submission(submitted: JobSubmitted, id: str, who: str, first: GenerationStarted | None) -> SubmitJob:
    """Return the request for a job. Its code and the newest step to restore show in the first generation."""
    spec, code = submitted.spec, None
    if first and first.restore_at_most is not None:
        spec = msgspec.structs.replace(spec, env=spec.env | {RESTORE_STEP: str(first.restore_at_most)})
    if first and first.code_version:
        code = CodeOffer(version=first.code_version)
    return SubmitJob(id=id, asked_by=who, spec=spec, code=code)


def _request(group: _Group, first: GenerationStarted | None) -> AnyRequest | None:
    """Return the request that led to these decisions; None if it was the passing of time."""
    for event in group.events:
        reason = getattr(event, "reason", "")
        who, _, message = reason.removeprefix("rolled back: ").removeprefix(ASKED_BY).partition(": ")
        if ASKED_BY not in reason or not group.cause or event.job is None:
            continue
        match event:
            case JobSubmitted():
                return _submission(event, group.cause, who, first)
            case JobStopping():
                return StopJob(id=group.cause, asked_by=who, job=event.job)
            case BreakerReset():
                return ResetBreaker(id=group.cause, asked_by=who, job=event.job)
            case CodeJudged() if reason.startswith("rolled back: "):
                return RollbackJob(id=group.cause, asked_by=who, job=event.job)
            case UpdateWithdrawn():
                return RollbackJob(id=group.cause, asked_by=who, job=event.job)
            case UpdatePlanned():
                within_s = (event.until - event.at).total_seconds() if event.until else 0.0
                offer = CodeOffer(version=event.version, message=message)
                return UpdateJob(
                    id=group.cause,
                    asked_by=who,
                    job=event.job,
                    code=offer,
                    is_urgent=event.is_urgent,
                    within_s=within_s,
                )
            case _:
                pass
    return None
