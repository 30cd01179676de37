"""A job that gets slow without an error (GREYHOUND §4): detection, location, tests while training is held. Pure.

    watching   the iterations of one rank of each node are tracked
    profiling  all nodes are asked how their ranks spent the last iterations
    testing    training is held, suspects are tested
    voting     the finding is emitted and names no machine: stacks are taken in rounds, while training goes on
    watching   the finding is emitted, training goes on

Events and orders stay pending until they are committed. A stage ends with the answers it has when its time is over. An
onset during an analysis is analyzed after it, unless that names a machine.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.engines.slow.calls import IterationTime
from holdfast.engines.slow.sent_profiles import ITERATIONS_MAX
from holdfast.engines.slow.slow_findings import PaceChange, SlowSuspects
from holdfast.engines.slow.tracker import JobPace
from holdfast.events import (
    CollectivesProfiled,
    CollectiveTrace,
    Event,
    FailSlowOnset,
    FailSlowRelieved,
    MfuDeclined,
    SlownessTested,
    StackDump,
    StepsMeasured,
)
from holdfast.events.parts.samples import StepSample
from holdfast.ids import derived_id
from holdfast.orders.slow import SlowOrder, SlowTests
from holdfast.orders.trace import TraceOrder
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.symptoms import Symptom
from holdfast_analyzer.engines.slow.slow_analysis import Analysis
from holdfast_analyzer.engines.slow.slow_answers import fits, was_measured_by
from holdfast_analyzer.engines.slow.slow_location import (
    Profiles,
    SlowJudgement,
    by_collectives,
    by_tests,
    hold_of,
    profiles_of,
    transfers_of,
)
from holdfast_analyzer.engines.slow.slow_vote import Ballot, placement_of

SOURCE = "analyzer"
SLOW_ITERATIONS_MIN = 4
"""Iterations at the new pace before all nodes are asked: a median of fewer is that of a single iteration."""
ASK_ANYWAY = timedelta(seconds=3)
STEPS_FIRST = 20
"""Steps that the nodes must have reported in sum before steps may replace the period of collectives."""
FINER_THAN_STEPS = 1.5

OLD = timedelta(seconds=30)
"""Older iterations show nothing of the present."""

PATIENCE_MAX = 5.0
"""Multiple of `answer_s` for which nodes of a job that became much slower are waited for at most."""

HOLDS_MAX = 3
LEAD_GROWTH = 5.0
"""Factor by which the lead time grows when a hold is repeated, because its order reached some ranks too late."""

SILENT_SHOWN = 8

IMBALANCES = ("stage_imbalance", "sequence_imbalance")
"""Causes that are no machine's fault."""

Output = Event | SlowOrder | TraceOrder


class SlowJob:
    """One job: its pace, the analysis under way, and the events and orders that are not committed yet."""

    def __init__(self, job: str, policy: SlowPolicy) -> None:
        self.job = job
        self._policy = policy
        self._generation = 0
        self._pace = JobPace(policy.slower_by)
        self._newest: dict[int, int] = {}
        self._reported_steps = 0
        self._reported_iterations = 0
        self._by_steps = False
        self._onset: tuple[PaceChange, str, datetime] | None = None
        self._declined: MfuDeclined | None = None
        self._pending: list[Output] = []
        self.analysis: Analysis | None = None
        self.received_at: datetime | None = None

    def take(self, event: StepsMeasured, now: datetime) -> None:
        generation = event.generation or 0
        # Agents repeat their last measurements to a bus that lost them: an old pace is no news.
        if generation < self._generation or now - event.at > OLD:
            return
        if generation > self._generation:
            self._begin(generation)
        self.received_at = now
        for sample in self._samples(event):
            if sample.iteration <= self._newest.get(sample.rank, -1):
                continue
            self._newest[sample.rank] = sample.iteration
            for change in self._pace.observe(sample):
                self._changed(change, event, now)
        if self._onset is not None and self.analysis is None and self._is_ripe(now):
            change, cause, _ = self._onset
            self._onset = None
            since = min(ITERATIONS_MAX, max(2, self._slow_for(change)))
            self._ask(derived_id(cause, "slow"), now, iterations=since, slow=(change.after_s, change.healthy_s))

    def declined(self, event: MfuDeclined) -> None:
        """Note that the job's pace has declined: slowly, or by a training log only."""
        if not self._policy.locate or (event.generation or 0) < self._generation:
            return
        if (event.generation or 0) > self._generation:
            self._begin(event.generation or 0)
        # A sudden change was analyzed when it came.
        if self.analysis is None and self._onset is None and not self._pace.is_slow:
            self._declined = event

    def break_off_rounds(self) -> None:
        """Stop the rounds of stacks unless a person asked for them: the job hangs, or a new analysis begins."""
        if self.analysis is not None and self.analysis.ballot is not None and not self.analysis.by_stacks:
            self.analysis = None

    def _samples(self, event: StepsMeasured) -> list[IterationTime]:
        steps = self._steps_of(event)
        by_steps = self._is_better_by_steps(event, len(steps))
        if by_steps is not self._by_steps:
            self._by_steps = by_steps
            self._newest.clear()
            self._pace = JobPace(self._policy.slower_by)
        if not by_steps:
            return [
                IterationTime(
                    rank=sample.rank,
                    iteration=sample.iteration,
                    duration_s=sample.duration_s,
                    pattern=sample.pattern,
                    in_calls_s=sample.in_calls_s,
                )
                for sample in event.iterations
            ]
        return [
            IterationTime(rank=step.rank, iteration=max(0, step.step), duration_s=step.duration_s) for step in steps
        ]

    def _steps_of(self, event: StepsMeasured) -> list[StepSample]:
        rank = min((sample.rank for sample in event.samples), default=0)
        return [sample for sample in event.samples if sample.rank == rank and sample.duration_s > 0]

    def _is_better_by_steps(self, event: StepsMeasured, steps: int) -> bool:
        """Return True if steps show the pace better: DDP's collectives are unseen (C++), or a period is part of one."""
        self._reported_steps += steps
        self._reported_iterations += len(event.iterations)
        if self._reported_steps < STEPS_FIRST:
            return False
        return not self._reported_iterations or self._reported_iterations > FINER_THAN_STEPS * self._reported_steps

    def take_profile(self, event: CollectivesProfiled) -> None:
        if self.analysis is None or event.asked != self.analysis.wanted.id or self.analysis.tests is not None:
            return
        if fits(event, self.analysis.profiled.values()):
            self.analysis.profiled.setdefault(event.node_rank, event)

    def take_tests(self, event: SlownessTested) -> None:
        if self.analysis is None or event.asked != self.analysis.wanted.id:
            return
        if was_measured_by(event, self.analysis.profiled.get(event.node_rank)):
            self.analysis.tested[event.stage][event.node_rank] = event

    def take_stacks(self, event: StackDump | CollectiveTrace) -> bool:
        """Take in stacks of a node; return False if they were not asked for here."""
        ballot = self.analysis.ballot if self.analysis is not None else None
        if ballot is None or not ballot.takes(event.trace):
            return False
        ballot.add(event)
        return True

    def requested(self, asked: str, asked_by: str, now: datetime, *, tests: bool, stacks: bool) -> None:
        """Begin an analysis that a person asked for: by rounds of stacks, or by collectives and, if wanted, tests."""
        self._ask(asked, now, slow=self._pace.slow, asked_by=asked_by, tests=tests, by_stacks=stacks)

    def due(self, now: datetime) -> tuple[Output, ...]:
        """Go on with the analysis, and return the pending events and orders."""
        if self.analysis is None and self._declined is not None:
            event, self._declined = self._declined, None
            self._ask(derived_id(event.id, "slow"), now, share_left=event.share_left)
        if self.analysis is not None:
            self._go_on(self.analysis, now)
        return tuple(self._pending)

    def committed(self, output: Output) -> None:
        self._pending = [other for other in self._pending if other is not output]

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._pace = JobPace(self._policy.slower_by)
        self._newest.clear()
        self._reported_steps = self._reported_iterations = 0
        self._by_steps = False
        self._onset = self._declined = None
        self.analysis = None

    def _changed(self, change: PaceChange, cause: StepsMeasured, now: datetime) -> None:
        is_onset = change.direction == "onset"
        common: dict[str, Any] = {
            # Seen twice, it is the same finding to the letter, and recorded once.
            "id": derived_id(cause.id, change.direction, change.iteration),
            "at": cause.at,
            "cause": cause.id,
            **self._common,
            "before_s": change.before_s,
            "after_s": change.after_s,
            "healthy_s": change.healthy_s,
            "iteration": change.iteration,
            "detected_after": change.detected_after,
            "ranks": change.ranks,
        }
        if is_onset or change.is_over:
            # The rounds so far showed another pace.
            self.break_off_rounds()
        if is_onset:
            found = FailSlowOnset(**common, symptom=Symptom.MFU_DECLINE)
            self._pending.append(found)
            # During an analysis it waits: the profiles may be older than this change.
            self._onset = (change, found.id, now) if self._policy.locate else None
        else:
            self._pending.append(FailSlowRelieved(**common, is_over=change.is_over))
            self._onset = None

    def _is_ripe(self, now: datetime) -> bool:
        assert self._onset is not None
        change, _, at = self._onset
        return self._slow_for(change) >= SLOW_ITERATIONS_MIN or now - at >= ASK_ANYWAY

    def _slow_for(self, change: PaceChange) -> int:
        return (
            max((newest for rank, newest in self._newest.items() if rank in change.ranks), default=0) - change.iteration
        )

    def _ask(
        self, asked: str, now: datetime, *, iterations: int = ITERATIONS_MAX, tests: bool = True, **known: Any
    ) -> None:
        after_s, healthy_s = known.get("slow") or (0.0, 0.0)
        # The node that is looked for answers as slowly as it trains.
        patience = min(PATIENCE_MAX, max(1.0, after_s / healthy_s if healthy_s else 1.0))
        until = now + timedelta(seconds=self._policy.answer_s * patience)
        wanted = SlowOrder(id=asked, job=self.job, generation=self._generation, until=until, iterations=iterations)
        may_test = tests and (self._policy.test or bool(known.get("asked_by")))
        self.analysis = Analysis(wanted, now, tests=may_test, by_steps=self._by_steps, **known)
        self._pending.append(wanted)

    def _lead_s(self, earlier: int) -> float:
        """Return the lead time of a hold, in seconds, after `earlier` holds whose orders came too late."""
        return self._policy.ahead_s * LEAD_GROWTH**earlier

    def _ask_again(self, analysis: Analysis, found: tuple[Profiles, SlowJudgement], now: datetime) -> None:
        """Repeat an analysis whose order to hold did not reach all ranks in time. The new order ends the hold."""
        asked = derived_id(analysis.asked, "again", analysis.holds)
        until = now + (analysis.wanted.until - analysis.began)
        wanted = msgspec.structs.replace(analysis.wanted, id=asked, until=until)
        self.analysis = Analysis(
            wanted,
            analysis.began,
            slow=analysis.slow,
            share_left=analysis.share_left,
            asked_by=analysis.asked_by,
            by_steps=analysis.by_steps,
            again=analysis,
        )
        self.analysis.before = found
        self._pending.append(wanted)

    def _go_on(self, analysis: Analysis, now: datetime) -> None:
        if analysis.ballot is not None:
            self._vote(analysis, analysis.ballot, now)
        elif analysis.tests is None:
            self._profiled(analysis, now)
        else:
            assert analysis.profiles is not None
            assert analysis.located is not None
            self._tested(analysis, analysis.profiles, analysis.located, analysis.tests, now)

    def _profiled(self, analysis: Analysis, now: datetime) -> None:
        profiled = analysis.profiled
        nnodes = max((event.nnodes for event in profiled.values()), default=1)
        if len(profiled) < nnodes and now < analysis.wanted.until:
            return
        if analysis.before is not None and len(profiled) < analysis.before[0].nnodes:
            analysis.profiles, judged = analysis.before
            self._end(analysis, judged, now)
            return
        analysis.profiles = profiles = profiles_of(profiled)
        if analysis.by_stacks and placement_of(profiled) is not None:
            self._begin_rounds(analysis, now)
            return
        if profiles is None:
            self._end(
                analysis, SlowJudgement(cause="unknown", summary="no node reported how its ranks spend their time"), now
            )
            return
        if not profiles.works:
            summary = (
                "the calls of its ranks show no iterations: collectives of DTensor, called from C++, have no times here"
            )
            self._end(analysis, SlowJudgement(cause="unknown", summary=summary), now)
            return
        analysis.located = profiles.locate()
        may_test = analysis.may_test and len(profiled) == nnodes and bool(analysis.located.suspicions)
        lead_s = self._lead_s(analysis.holds - 1)
        hold = hold_of(profiles, analysis.located, self._policy, lead_s, now) if may_test else None
        if hold is None:
            judged = by_collectives(profiles, analysis.located)
            if silent := [str(rank) for rank in range(nnodes) if rank not in profiled]:
                shown = ", ".join((*silent[:SILENT_SHOWN], *(["..."] if len(silent) > SILENT_SHOWN else [])))
                text = f"{judged.summary}; {len(silent)} of {nnodes} nodes did not report in time: node rank {shown}"
                judged = msgspec.structs.replace(judged, summary=text)
            self._end(analysis, judged, now)
            return
        analysis.tests, analysis.passes = hold
        self._pending.append(self._wanted(analysis, analysis.tests.until, tests=analysis.tests))

    def _tested(
        self, analysis: Analysis, profiles: Profiles, located: SlowSuspects, tests: SlowTests, now: datetime
    ) -> None:
        held = analysis.tested["hold"]
        done = analysis.tested["transfers"] if tests.passes else held
        if len(done) < len(analysis.profiled) and now < tests.until:
            return
        # A rank that is not held trains over the links under test.
        all_held = len(held) == len(analysis.profiled) and all(event.held for event in held.values())
        if analysis.passes and not tests.passes and all_held:
            analysis.tests = transfers_of(profiles, tests, analysis.passes, self._policy, now)
            self._pending.append(self._wanted(analysis, analysis.tests.until, tests=analysis.tests))
            return
        tested = [event for stage in analysis.tested.values() for event in stage.values()]
        judged = by_tests(profiles, located, tested, self._policy)
        had_s = (tests.after_step - profiles.step - 1) * profiles.pace_s
        may_be_late = not judged.is_validated and not all_held and had_s < self._lead_s(analysis.holds)
        if may_be_late and analysis.holds < HOLDS_MAX:
            self._ask_again(analysis, (profiles, judged), now)
        else:
            self._end(analysis, judged, now)

    def _wanted(self, analysis: Analysis, until: datetime, **stage: Any) -> SlowOrder:
        return SlowOrder(id=analysis.wanted.id, job=self.job, generation=self._generation, until=until, **stage)

    def _end(self, analysis: Analysis, judged: SlowJudgement, now: datetime) -> None:
        if analysis.tests is not None:
            until = max(analysis.tests.until, now) + timedelta(seconds=self._policy.answer_s)
            self._pending.append(self._wanted(analysis, until, is_over=True))
        self._pending.append(analysis.finding(judged, now, self._common))
        if judged.nodes or judged.links:
            self._onset = None
        is_explained = bool(judged.nodes or judged.links) or judged.cause in IMBALANCES
        if is_explained or self._onset is not None or not self._policy.vote or not self._is_slow(analysis):
            self.analysis = None
            return
        # Ranks that were held a moment ago show that in their stacks still.
        self._begin_rounds(analysis, now, wait_s=self._policy.vote_every_s if analysis.tests is not None else 0.0)

    def _is_slow(self, analysis: Analysis) -> bool:
        return self._pace.is_slow or analysis.share_left is not None

    def _begin_rounds(self, analysis: Analysis, now: datetime, wait_s: float = 0.0) -> None:
        place = placement_of(analysis.profiled)
        if place is None:
            self.analysis = None
            return
        first = now + timedelta(seconds=wait_s)
        analysis.ballot = Ballot(analysis.wanted.id, self.job, self._generation, place, self._policy, first)
        self._vote(analysis, analysis.ballot, now)

    def _vote(self, analysis: Analysis, ballot: Ballot, now: datetime) -> None:
        if (wanted := ballot.due(now)) is not None:
            self._pending.append(wanted)
        if ballot.is_over:
            self._pending.append(analysis.voted(ballot, now, self._common))
            self.analysis = None

    @property
    def _common(self) -> dict[str, Any]:
        return {"source": SOURCE, "job": self.job, "generation": self._generation}
