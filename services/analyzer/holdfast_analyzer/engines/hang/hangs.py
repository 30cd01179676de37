"""Hangs, online: a job that stands still is traced, what its processes do is judged, and the finding said. Pure.

    moves ──stands still for longer than its limit──▶ asked ──every node has answered, or time is over──▶ judged
      ▲                                                 │                                                  │  │
      └───────────────── it moves ──────────────────────┴────── only work was seen: a longer limit ────────┘  │
      └───────────────── it moves, or a new generation ◀──────────────── hang_found, once ────────────────────┘

Whether a job hangs is not decided by its silence alone. A rank that computes, reads or writes is given longer: nobody
may have said that it evaluates, or writes a checkpoint while the others wait. So is a job in which nobody waits for
anybody and none stands elsewhere. Before a job's very first step it may go on for ever with either: it may be one that
makes none.
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
from holdfast.settings.hang import HangPolicy
from holdfast_analyzer.engines.hang.hang_answers import RANKS_TOLD_MAX, Answers, Judged, judge
from holdfast_analyzer.engines.hang.progress_watch import CYCLE, ProgressWatch, Standing

SOURCE = "analyzer"
ASKED_AGAIN_S = 10.0
"""Before a machine is blamed for not answering, it is asked once more and given this long."""

TOLD_BYTES_MAX = 500_000
"""Half of what an event may have."""

BY_HAND_S = 10.0
"""What a person asks for may take longer than what training waits for."""

VALID_S = 60.0
"""An agent obeys a request that is no older, by its own clock: clocks differ, and its answer is awaited by ours."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A trace under way; `standing` is None if a person asked for it. `again`: some had not answered the first time."""

    wanted: TraceOrder
    at: datetime
    until: datetime
    standing: Standing | None = None
    asked_by: str = ""
    again: bool = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said and asked for. `asked` is the trace that this begins, `ends` says that one is over."""

    events: tuple[Event, ...] = ()
    orders: tuple[TraceOrder, ...] = ()
    asked: Asked | None = None
    ends: bool = False
    look_again_s: float | None = None
    found: bool = False


class Hangs:
    """What is known of one job. What is said changes it only once that is committed (`committed`)."""

    def __init__(self, job: str, policy: HangPolicy) -> None:
        self._job = job
        self._policy = policy
        self.watch = ProgressWatch(policy)
        self.asked: Asked | None = None
        self._answers = Answers({})
        self._generation = -1
        self._is_reported = False
        self._look_again_s: float | None = None

    def take(self, event: Progress | RanksFinished | StackDump | CollectiveTrace, now: datetime) -> None:
        """Take in what an agent says."""
        if isinstance(event, Progress):
            self.watch.take(event, now)
        elif isinstance(event, RanksFinished):
            self.watch.over(event, now)
        elif self.asked is not None and event.trace == self.asked.wanted.id:
            self._answers.add(event)
        if self.watch.generation != self._generation:
            self._generation = self.watch.generation
            self.asked, self._is_reported, self._look_again_s = None, False, None
            self._answers = Answers({})

    def answered(self, step_s: float | None, now: datetime) -> Said | None:
        """What follows once every node has answered; None: nothing."""
        if self.asked is None or not self._answers.are_complete:
            return None
        return self._judged(self.asked, self.watch.standing(step_s, now), now)

    def due(self, step_s: float | None, now: datetime, hearing_since: datetime) -> Said | None:
        """What follows from the time; None: nothing. An answer counts as missing only if it would have been heard."""
        if self.asked is not None:
            waited = now - max(self.asked.at, hearing_since)
            if not self._answers.are_complete and waited < self.asked.until - self.asked.at:
                return None
            return self._judged(self.asked, self.watch.standing(step_s, now), now)
        standing = self.watch.standing(step_s, now)
        if standing is None:
            if self.watch.is_heard(now):
                self._is_reported, self._look_again_s = False, None
            return None
        if self._is_reported or standing.still_s < (self._look_again_s or 0.0):
            return None
        return self._suspected(standing, now)

    def by_hand(self, trace: str, asked_by: str, now: datetime, *, native: bool) -> Said:
        """A person asks what the job's processes do."""
        wanted = self._wanted(trace, now, native=native)
        until = now + timedelta(seconds=BY_HAND_S)
        return Said(orders=(wanted,), asked=Asked(wanted=wanted, at=now, until=until, asked_by=asked_by))

    def committed(self, said: Said) -> None:
        """It is said."""
        if said.asked is not None:
            nodes = set(self.watch.nodes)
            of_those = {rank: node for rank, node in self.watch.node_of_rank.items() if node in nodes}
            self.asked, self._answers = said.asked, Answers(of_those)
        elif said.ends:
            self.asked, self._answers = None, Answers({})
            self._look_again_s = said.look_again_s
            self._is_reported = self._is_reported or said.found

    def _suspected(self, standing: Standing, now: datetime) -> Said:
        trace = derived_id(standing.cause, "hang", self._job)
        wanted = self._wanted(trace, now)
        suspected = HangSuspected(
            id=derived_id(trace, "suspected"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=standing.cause,
            trace=trace,
            sign=standing.sign,
            still_s=standing.still_s,
            limit_s=standing.limit_s,
            phase=standing.phase,
            step=standing.step,
            standing=standing.standing[:RANKS_TOLD_MAX],
            waiting=standing.waiting[:RANKS_TOLD_MAX],
        )
        until = now + timedelta(seconds=self._policy.answer_s)
        asked = Asked(wanted=wanted, at=now, until=until, standing=standing)
        return Said(events=(suspected,), orders=(wanted,), asked=asked)

    def _wanted(self, trace: str, now: datetime, *, native: bool = False) -> TraceOrder:
        until = now + timedelta(seconds=VALID_S)
        return TraceOrder(id=trace, job=self._job, generation=self.watch.generation, until=until, native=native)

    def _judged(self, asked: Asked, standing: Standing | None, now: datetime) -> Said:
        unanswered = self._answers.missing
        if asked.standing is not None and standing is None:
            # It went on meanwhile, or is not heard of as a whole: no hang, and nothing to say.
            return Said(ends=True)
        judged = judge(
            self._answers,
            mesh=self.watch.mesh,
            nproc_per_node=self.watch.nproc_per_node,
            node_of_rank=self.watch.node_of_rank,
            outside=frozenset(standing.standing if standing else self.watch.node_of_rank),
            moves_data=standing is not None and standing.phase not in CYCLE,
            unanswered=unanswered,
            policy=self._policy,
        )
        if asked.standing is not None and unanswered and not asked.again and not judged.verdict.ranks:
            return self._ask_again(asked, now)
        traced = self._traced(asked, judged, unanswered, now)
        if asked.standing is None or standing is None:
            return Said(events=(traced,), ends=True, look_again_s=self._look_again_s)
        patience_s = self._patience_s(judged, standing)
        if standing.still_s < patience_s:
            return Said(events=(traced,), ends=True, look_again_s=min(2 * standing.still_s, patience_s))
        return Said(events=(traced, self._found(asked, standing, judged, traced, now)), ends=True, found=True)

    def _patience_s(self, judged: Judged, standing: Standing) -> float:
        """How long the job may stand as it does, now that it was looked at."""
        somebody_waits = bool(standing.waiting) or judged.somebody_waits
        if standing.is_first_start and (judged.is_excused or not (somebody_waits or judged.is_machine)):
            # It may compile for an hour, or be no training that makes steps.
            return math.inf
        if judged.is_excused:
            return self._policy.working_s
        return 0.0 if somebody_waits or judged.is_machine else self._policy.unnamed_s

    def _ask_again(self, asked: Asked, now: datetime) -> Said:
        trace = derived_id(asked.wanted.id, "again")
        wanted, until = self._wanted(trace, now), now + timedelta(seconds=ASKED_AGAIN_S)
        again = msgspec.structs.replace(asked, wanted=wanted, at=now, until=until, again=True)
        return Said(orders=(wanted,), asked=again)

    def _traced(self, asked: Asked, judged: Judged, unanswered: tuple[str, ...], now: datetime) -> JobTraced:
        trace = asked.wanted.id
        traced = JobTraced(
            id=derived_id(trace, "traced"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=derived_id(trace, "suspected") if asked.standing and not asked.again else trace,
            trace=trace,
            suspects=judged.suspects,
            scope=judged.scope,
            confidence=judged.confidence,
            summary=judged.summary,
            evidence=judged.evidence,
            places=judged.places,
            working=judged.working[:RANKS_TOLD_MAX],
            unread=judged.unread,
            unanswered=unanswered[:RANKS_TOLD_MAX],
            processes=judged.processes,
            still_s=self.watch.still_s,
            took_s=max(0.0, (now - asked.at).total_seconds()),
            asked_by=asked.asked_by,
        )
        if len(encode(traced)) <= TOLD_BYTES_MAX:
            return traced
        # Whatever the ranks call their functions: that there is a finding must be heard.
        suspects = tuple(msgspec.structs.replace(suspect, evidence=()) for suspect in traced.suspects)
        return msgspec.structs.replace(traced, places=(), evidence=(), suspects=suspects)

    def _found(self, asked: Asked, standing: Standing, judged: Judged, traced: JobTraced, now: datetime) -> HangFound:
        return HangFound(
            id=derived_id(asked.wanted.id, "found"),
            at=now,
            source=SOURCE,
            job=self._job,
            generation=self.watch.generation,
            cause=traced.id,
            trace=asked.wanted.id,
            sign=standing.sign,
            since=standing.since,
            still_s=standing.still_s,
            limit_s=standing.limit_s,
            phase=standing.phase,
            step=standing.step,
            nodes=judged.nodes[:RANKS_TOLD_MAX],
            ranks=judged.ranks[:RANKS_TOLD_MAX],
            scope=judged.scope,
            confidence=judged.confidence,
            is_machine=judged.is_machine,
            summary=judged.summary,
            evidence=judged.evidence,
        )
