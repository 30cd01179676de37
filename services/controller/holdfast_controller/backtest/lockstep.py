"""Two policies over the same recorded inputs, side by side until their decisions part. Pure.

After a parting the record goes on as the one policy decided, and what would have followed from the other decision is
not known. So the comparison rests until the job trains again without an incident, and both go on from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.engines.record.node_records import NO_RECORDS, NodeRecords
from holdfast.events import AnyEvent, Event, NodeReleaseRequested
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.backtest.inputs import Input
from holdfast_controller.plan.draft import JobDecision, Rules
from holdfast_controller.plan.generation import STEP_RECORD_S
from holdfast_controller.plan.incident import slow
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.members import concerns
from holdfast_controller.plan.phase import Running
from holdfast_controller.plan.planner import Planner
from holdfast_controller.plan.record.record_upkeep import released

TIMES_DIFFER_S = 1.0
"""Difference of times that is no difference: the record lacks the moments of decisions that emitted no event."""
ROUNDED = 0.01
"""Relative difference of two durations in a text whose three digits were rounded apart."""
LATE_MAX = timedelta(seconds=5)
"""Time that the controller may take to notice that a limit has passed."""

_DURATION = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?(?= s\b)")

_NOT_COMPARED = ("id", "at", "cause", "incident", "submitted_at", "avoid", "avoid_racks", "why_avoided")
"""Identity, and nodes that a claim does not want: the records of nodes have failures of other jobs too."""


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """An input at which the other policy decides differently."""

    at: datetime
    cause: AnyEvent | None
    """None if time passed, or a person asked."""
    phase: str
    """The job's phase before."""
    incident: str | None
    """The incident that this belongs to under the recorded policy."""
    decided: tuple[Event, ...]
    would_decide: tuple[Event, ...]


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """An input at which the settings that are taken to be the recorded ones do not give what was recorded."""

    at: datetime
    cause: AnyEvent | None
    recorded: tuple[Event, ...]
    decided: tuple[Event, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One job under two policies."""

    inputs: int
    decisions: int
    """Recorded events of the controller."""
    reproduced: int
    """Number of them that the settings taken to be the recorded ones give to the letter."""
    unexplained: tuple[Unexplained, ...]
    partings: tuple[Parting, ...]


def compare(inputs: Sequence[Input], recorded: Rules, other: Rules) -> Comparison:
    """Run the inputs of a job through the planner under both policies."""
    run = _Lockstep(Planner(recorded), Planner(other))
    for given in inputs:
        run.take(given)
    return Comparison(
        inputs=len(inputs),
        decisions=sum(len(given.decided) for given in inputs),
        reproduced=run.reproduced,
        unexplained=tuple(run.unexplained),
        partings=tuple(run.partings),
    )


def same(one: Iterable[Event], other: Iterable[Event]) -> bool:
    """Return True if both are the same but for ids, exact times and durations, and unwanted nodes."""
    return _equal([_content(event) for event in one], [_content(event) for event in other])


class _Lockstep:
    def __init__(self, recorded: Planner, other: Planner) -> None:
        self._recorded = _with_records(recorded)
        self._other = _with_records(other)
        self._state: JobState | None = None
        # None while the policies have parted.
        self._beside: JobState | None = None
        self.reproduced = 0
        self.unexplained: list[Unexplained] = []
        self.partings: list[Parting] = []

    def take(self, given: Input) -> None:
        if isinstance(given.event, NodeReleaseRequested):
            for planner in (self._recorded, self._other):
                _release(planner, given.event)
            return
        before = self._state
        if self._beside is not None:
            self._act_earlier(self._beside, given.at)
        decision = _decide(self._recorded, before, given)
        events = decision.events if decision else ()
        was_away = False
        if given.event is None and given.request is None and not same(events, given.decided):
            # Had the controller been away until now, what needs silence would not have been due yet.
            instead = _decide(self._recorded, before, given, was_away=True)
            if instead and same(instead.events, given.decided):
                decision, events, was_away = instead, instead.events, True
        if given.had_effect is False:
            self._consider(given, events)
            return
        if not given.decided and events:
            # The job was in another state when it came, and the record does not show when that was.
            return
        if not same(events, given.decided):
            self.unexplained.append(Unexplained(at=given.at, cause=given.event, recorded=given.decided, decided=events))
        else:
            self.reproduced += len(given.decided)
        self._state = decision.state if decision else before
        _remember(self._recorded, decision)
        if self._beside is not None or before is None:
            self._compare(before if self._beside is None else self._beside, given, events, was_away=was_away)
        self._meet_again()

    def _compare(self, beside: JobState | None, given: Input, events: tuple[Event, ...], *, was_away: bool) -> None:
        decision = _decide(self._other, beside, given, was_away=was_away)
        would = decision.events if decision else ()
        if same(events, would):
            self._beside = decision.state if decision else beside
            _remember(self._other, decision)
        else:
            self._part(given.at, given.event, beside, events, would)

    def _consider(self, given: Input, events: tuple[Event, ...]) -> None:
        """Part at an input that had no effect if it would have had one under the other policy alone."""
        decision = _decide(self._other, self._beside, given)
        if decision and decision.events and not events and self._beside is not None:
            self._part(given.at, given.event, self._beside, (), decision.events)

    def _act_earlier(self, beside: JobState, at: datetime) -> None:
        """Part if the other policy would have lost patience before this input, and the recorded one did not."""
        due, recorded_due = (
            due_at(beside, self._other.rules.ladder),
            due_at(self._state, self._recorded.rules.ladder) if self._state else None,
        )
        if due is None or due >= at or (recorded_due and abs(recorded_due - due) < LATE_MAX):
            return
        decision = _time_passed(self._other, beside, due, beside.submitted_at)
        if decision.events:
            self._part(due, None, beside, (), decision.events)

    def _part(
        self,
        at: datetime,
        cause: AnyEvent | None,
        before: JobState | None,
        decided: tuple[Event, ...],
        would: tuple[Event, ...],
    ) -> None:
        incident = before.incident if before else None
        opened = next((event.incident for event in decided if event.incident), None)
        self.partings.append(
            Parting(
                at=at,
                cause=cause,
                phase=before.phase_name if before else "new",
                incident=incident.id if incident else opened,
                decided=decided,
                would_decide=would,
            )
        )
        self._beside = None

    def _meet_again(self) -> None:
        state = self._state
        if self._beside is None and state and state.incident is None and isinstance(state.phase, Running):
            self._beside = state
            self._other = _with_records(self._other, self._recorded.rules.records)


def _with_records(planner: Planner, records: NodeRecords = NO_RECORDS) -> Planner:
    """Return the planner with records of nodes that only its own decisions change."""
    return planner.knowing(NodeRecords(records))


def _remember(planner: Planner, decision: JobDecision | None) -> None:
    planner.rules.records.update({record.node: record for record in decision.noted} if decision else {})


def _release(planner: Planner, event: NodeReleaseRequested) -> None:
    """Note that a person took the node off the blocklist: what it was evicted for counts no more."""
    records = planner.rules.records
    if (record := released(records.get(event.node or ""), event, planner.rules)) is not None:
        records.update({record.node: record})


def due_at(state: JobState, policy: LadderPolicy) -> datetime | None:
    """Return when the passing of time alone makes this job's planner act; None: never."""
    times = [
        state.deadline.until if state.deadline else None,
        slow.due_at(state, policy),
        *(() if state.replacement else (doubt.due_at for doubt in state.doubts.values())),
        state.code.pending.until if state.code.pending else None,
        state.replacement_due_at,
        state.hints_due_at,
    ]
    return min((time for time in times if time), default=None)


def _decide(planner: Planner, state: JobState | None, given: Input, *, was_away: bool = False) -> JobDecision | None:
    """Return the decision about an input. `was_away`: the controller has only just begun to receive events again."""
    if given.request is not None:
        return planner.request(state, given.request, given.at)
    if state is None:
        return None
    if given.event is None:
        # The silence began as long ago as anything: that the controller acted shows that it had listened long enough.
        due, at = due_at(state, planner.rules.ladder), given.at
        if due is not None and at < due <= at + LATE_MAX:
            at = due
        return _time_passed(planner, state, at, at if was_away else state.submitted_at)
    if given.event.job is None and not concerns(state, given.event):
        return None
    decision = planner.event(state, given.event, given.at)
    if given.had_effect and decision.state == state and isinstance(state.phase, Running):
        # Its time was a guess, if the clock was set: steps are noted at intervals of the controller's clock.
        return planner.event(state, given.event, state.phase.step_seen_at + timedelta(seconds=STEP_RECORD_S))
    return decision


def _time_passed(planner: Planner, state: JobState, at: datetime, hearing_since: datetime) -> JobDecision:
    """Return what the passing of time leads to. The controller looks twice a second, and a look may only tidy up."""
    decision = planner.time(state, at, hearing_since)
    while not decision.events and decision.state is not None and decision.state != state:
        state = decision.state
        decision = planner.time(state, at, hearing_since)
    return decision


def _content(event: Event) -> dict[str, Any]:
    fields = msgspec.to_builtins(event, builtin_types=(datetime,))
    return {name: value for name, value in fields.items() if name not in _NOT_COMPARED}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _equal_but_for_durations(one, other)
    if isinstance(one, float | int) and isinstance(other, float | int):
        return one == other or (float in (type(one), type(other)) and abs(one - other) <= TIMES_DIFFER_S)
    if isinstance(one, datetime) and isinstance(other, datetime):
        return abs((one - other).total_seconds()) <= TIMES_DIFFER_S
    return bool(one == other)


def _equal_but_for_durations(one: str, other: str) -> bool:
    """Return True if two texts differ only by durations that follow from times which the record lacks."""
    if _DURATION.sub("", one) != _DURATION.sub("", other):
        return False
    pairs = zip(map(float, _DURATION.findall(one)), map(float, _DURATION.findall(other)), strict=True)
    return all(abs(ours - theirs) <= max(TIMES_DIFFER_S, ROUNDED * max(ours, theirs)) for ours, theirs in pairs)
