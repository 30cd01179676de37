"""Hangs of one job: a job without progress is traced, the traces are judged, and the finding is emitted. Pure.

    moves ──no progress for longer than its limit──▶ traced ──every node has answered, or time is over──▶ judged
      ▲                                                 │                                                  │  │
      └───────────────── it moves ──────────────────────┴────── only work was seen: a longer limit ────────┘  │
      └───────────────── it moves, or a new generation ◀──────────────── hang_found, once ────────────────────┘

Silence alone is no hang. A rank that computes, reads or writes gets a longer limit: the script may evaluate or write a
checkpoint without naming that phase, while the other ranks wait. So does a job in which no rank waits for another one.
A hang in the script's own code that recurs at the same step gets more time than the one before: the script may wait
there for something outside, and would never get past that step.
Before a job's first step either may last without limit: some jobs never make a step.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import msgspec

from holdfast.events import (
    CollectiveTrace,
    Event,
    HangFound,
    HangSuspected,
    JobTraced,
    Progress,
    RanksFinished,
    StackDump,
    encode,
)
from holdfast.ids import derived_id
from holdfast.orders.trace import TraceOrder
from holdfast.settings.findings.hang import HangPolicy
from holdfast_analyzer.engines.hang.hang_answers import RANKS_SHOWN_MAX, HangJudgement, TraceAnswers, judge
from holdfast_analyzer.engines.hang.progress_watch import CYCLE, ProgressWatch, Stall

SOURCE = "analyzer"
ASKED_AGAIN_S = 10.0
"""Time for a second trace, before a machine is blamed for not answering the first."""

RECURRING_FACTOR = 4.0
"""Patience after each hang of the script's own code at the same step, as a multiple of that before."""

JOB_TRACED_BYTES_MAX = 500_000
"""Half of what an event may have."""

BY_HAND_S = 10.0
"""Time for the answers to a person's request: training does not wait for them."""

VALID_S = 60.0
"""Age at which an agent, by its own clock, ignores a request. Clocks differ, so it exceeds the wait for answers."""


class Tracing(msgspec.Struct, frozen=True, kw_only=True):
    """A trace of a job that waits for the answers of its nodes."""

    wanted: TraceOrder
    at: datetime
    until: datetime
    stall: Stall | None = None
    """None: a person asked for the trace."""
    asked_by: str = ""
    again: bool = False
    """True for the second trace, after some nodes had not answered the first."""


class HangStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a job's state: what to emit and to order, and what changes once that is committed."""

    events: tuple[Event, ...] = ()
    orders: tuple[TraceOrder, ...] = ()
    begins: Tracing | None = None
    ends: bool = False
    look_again_s: float | None = None
    found: bool = False
    own_step: int | None = None
    """The step at which the script's own code holds the job up by what was found."""


class JobHang:
    """Progress of one job and the trace of its processes. Events and orders change it only once they are committed."""

    def __init__(self, job: str, policy: HangPolicy) -> None:
        self._job = job
        self._policy = policy
        self.watch = ProgressWatch(policy)
        self.tracing: Tracing | None = None
        self._answers = TraceAnswers({})
        self._generation = -1
        self._has_reported = False
        self._look_again_s: float | None = None
        self._own_step: int | None = None
        self._own_hangs = 0
        """Hangs in a row that were found in the script's own code at that step, whatever the generation."""

    def take(self, event: Progress | RanksFinished | StackDump | CollectiveTrace, now: datetime) -> None:
        if isinstance(event, Progress):
            self.watch.take(event, now)
        elif isinstance(event, RanksFinished):
            self.watch.finished(event, now)
        elif self.tracing is not None and event.trace == self.tracing.wanted.id:
            self._answers.add(event)
        if self.watch.generation != self._generation:
            self._generation = self.watch.generation
            self.tracing, self._has_reported, self._look_again_s = None, False, None
            self._answers = TraceAnswers({})

    def answered(self, step_s: float | None, now: datetime) -> HangStep | None:
        """Return the step to take once every node has answered; None: some have not."""
        if self.tracing is None or not self._answers.are_complete:
            return None
        return self._judged(self.tracing, self.watch.stall(step_s, now), now)

    def due(self, step_s: float | None, now: datetime, hearing_since: datetime) -> HangStep | None:
        """Return the step that the time makes due; None: none. An answer is missing only if the bus was received."""
        if self.tracing is not None:
            waited = now - max(self.tracing.at, hearing_since)
            if not self._answers.are_complete and waited < self.tracing.until - self.tracing.at:
                return None
            return self._judged(self.tracing, self.watch.stall(step_s, now), now)
        stall = self.watch.stall(step_s, now)
        if stall is None:
            if self.watch.is_complete(now):
                self._has_reported, self._look_again_s = False, None
            return None
        if self._has_reported or stall.still_s < (self._look_again_s or 0.0):
            return None
        return self._suspected(stall, now)

    def requested(self, trace: str, asked_by: str, now: datetime, *, native: bool) -> HangStep:
        wanted = self._wanted(trace, now, native=native)
        until = now + timedelta(seconds=BY_HAND_S)
        return HangStep(orders=(wanted,), begins=Tracing(wanted=wanted, at=now, until=until, asked_by=asked_by))

    def committed(self, step: HangStep) -> None:
        if step.begins is not None:
            nodes = set(self.watch.nodes)
            of_those = {rank: node for rank, node in self.watch.node_of_rank.items() if node in nodes}
            self.tracing, self._answers = step.begins, TraceAnswers(of_those)
        elif step.ends:
            self.tracing, self._answers = None, TraceAnswers({})
            self._look_again_s = step.look_again_s
            self._has_reported = self._has_reported or step.found
            if step.own_step is not None:
                self._own_hangs = self._own_hangs + 1 if step.own_step == self._own_step else 1
                self._own_step = step.own_step

    def _suspected(self, stall: Stall, now: datetime) -> HangStep:
        trace = derived_id(stall.cause, "hang", self._job)
        wanted = self._wanted(trace, now)
        suspected = HangSuspected(
            id=derived_id(trace, "suspected"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=stall.cause,
            trace=trace,
            sign=stall.sign,
            still_s=stall.still_s,
            limit_s=stall.limit_s,
            phase=stall.phase,
            step=stall.step,
            standing=stall.outside[:RANKS_SHOWN_MAX],
            waiting=stall.waiting[:RANKS_SHOWN_MAX],
        )
        until = now + timedelta(seconds=self._policy.answer_s)
        asked = Tracing(wanted=wanted, at=now, until=until, stall=stall)
        return HangStep(events=(suspected,), orders=(wanted,), begins=asked)

    def _wanted(self, trace: str, now: datetime, *, native: bool = False) -> TraceOrder:
        until = now + timedelta(seconds=VALID_S)
        return TraceOrder(id=trace, job=self._job, generation=self.watch.generation, until=until, native=native)

    def _judged(self, tracing: Tracing, stall: Stall | None, now: datetime) -> HangStep:
        unanswered = self._answers.missing
        if tracing.stall is not None and stall is None:
            # The job made progress meanwhile, or some of its nodes are silent: no hang, and nothing to emit.
            return HangStep(ends=True)
        judged = judge(
            self._answers,
            mesh=self.watch.mesh,
            nproc_per_node=self.watch.nproc_per_node,
            node_of_rank=self.watch.node_of_rank,
            outside=frozenset(stall.outside if stall else self.watch.node_of_rank),
            moves_data=stall is not None and stall.phase not in CYCLE,
            unanswered=unanswered,
            policy=self._policy,
        )
        if tracing.stall is not None and unanswered and not tracing.again and not judged.verdict.ranks:
            return self._ask_again(tracing, now)
        traced = self._traced(tracing, judged, unanswered, now)
        if tracing.stall is None or stall is None:
            return HangStep(events=(traced,), ends=True, look_again_s=self._look_again_s)
        patience_s = self._patience_s(judged, stall)
        if stall.still_s < patience_s:
            return HangStep(events=(traced,), ends=True, look_again_s=min(2 * stall.still_s, patience_s))
        own_step = stall.step if _is_of_script(judged, stall) else None
        found = self._found(tracing, stall, judged, traced, now)
        return HangStep(events=(traced, found), ends=True, found=True, own_step=own_step)

    def _patience_s(self, judged: HangJudgement, stall: Stall) -> float:
        """Return how long the job may go without progress, judged by its trace."""
        some_wait = bool(stall.waiting) or judged.some_wait
        if stall.is_first_start and (judged.is_excused or not (some_wait or judged.is_machine)):
            # It may compile for an hour, or be a job that never makes a step.
            return math.inf
        is_again = stall.step == self._own_step and _is_of_script(judged, stall)
        factor = RECURRING_FACTOR**self._own_hangs if is_again else 1.0
        if judged.is_excused or (is_again and stall.sign == "no_step"):
            return self._policy.working_s * factor
        if is_again:
            return min(self._policy.working_s, self._policy.unnamed_s * factor)
        return 0.0 if some_wait or judged.is_machine else self._policy.unnamed_s

    def _ask_again(self, tracing: Tracing, now: datetime) -> HangStep:
        trace = derived_id(tracing.wanted.id, "again")
        wanted, until = self._wanted(trace, now), now + timedelta(seconds=ASKED_AGAIN_S)
        again = msgspec.structs.replace(tracing, wanted=wanted, at=now, until=until, again=True)
        return HangStep(orders=(wanted,), begins=again)

    def _traced(self, tracing: Tracing, judged: HangJudgement, unanswered: tuple[str, ...], now: datetime) -> JobTraced:
        trace = tracing.wanted.id
        traced = JobTraced(
            id=derived_id(trace, "traced"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=derived_id(trace, "suspected") if tracing.stall and not tracing.again else trace,
            trace=trace,
            suspects=judged.suspects,
            scope=judged.scope,
            confidence=judged.confidence,
            summary=judged.summary,
            evidence=judged.evidence,
            places=judged.places,
            working=judged.working[:RANKS_SHOWN_MAX],
            unread=judged.unread,
            unanswered=unanswered[:RANKS_SHOWN_MAX],
            processes=judged.processes,
            still_s=self.watch.still_s,
            took_s=max(0.0, (now - tracing.at).total_seconds()),
            asked_by=tracing.asked_by,
        )
        if len(encode(traced)) <= JOB_TRACED_BYTES_MAX:
            return traced
        # Function names of any length must not keep the finding from the bus.
        suspects = tuple(msgspec.structs.replace(suspect, evidence=()) for suspect in traced.suspects)
        return msgspec.structs.replace(traced, places=(), evidence=(), suspects=suspects)

    def _found(
        self, tracing: Tracing, stall: Stall, judged: HangJudgement, traced: JobTraced, now: datetime
    ) -> HangFound:
        return HangFound(
            id=derived_id(tracing.wanted.id, "found"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=traced.id,
            trace=tracing.wanted.id,
            sign=stall.sign,
            since=stall.since,
            still_s=stall.still_s,
            limit_s=stall.limit_s,
            phase=stall.phase,
            step=stall.step,
            nodes=judged.nodes[:RANKS_SHOWN_MAX],
            ranks=judged.ranks[:RANKS_SHOWN_MAX],
            scope=judged.scope,
            confidence=judged.confidence,
            is_machine=judged.is_machine,
            is_by_signal=judged.is_by_signal,
            symptom=judged.symptom,
            # A script that deadlocks by itself mostly does so before its first step.
            group=() if stall.is_first_start else judged.group,
            idle=judged.idle,
            summary=judged.summary,
            evidence=judged.evidence,
        )


def _is_of_script(judged: HangJudgement, stall: Stall) -> bool:
    """Return True if ranks hold the job up in the script's own code, and nothing is wrong with their processes."""
    if stall.sign == "no_step":
        return not (judged.is_machine or judged.is_by_signal)
    ranks = set(judged.ranks or stall.outside)
    return bool(ranks) and ranks <= judged.in_own_code & set(stall.outside)
