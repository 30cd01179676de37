"""A job that got slow without a word (GREYHOUND §4): noticed, located, tested while training is held, said. Pure.

    watching   the iterations of one rank of each node are tracked
    profiling  all nodes are asked how their ranks spent the last iterations
    testing    training is held, suspects are tested
    watching   the finding is said, training goes on

What is to be said stays until it was committed; a stage whose nodes do not answer in time ends with what there is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.desired import SlowStage, SlowTests, SlowWanted
from holdfast.event_parts import StepSample
from holdfast.events import (
    CollectivesProfiled,
    Event,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    SlownessTested,
    StepsMeasured,
)
from holdfast.finding_policies import SlowPolicy
from holdfast.ids import derived_id
from holdfast.slowness.calls import IterationTime
from holdfast.slowness.findings import Located, PaceChange
from holdfast.slowness.sent_profiles import ITERATIONS_MAX
from holdfast.slowness.tracker import JobPace
from holdfast.symptoms import TableOne
from holdfast_analyzer.slow_location import (
    Judged,
    Passes,
    Profiles,
    by_collectives,
    by_tests,
    hold_of,
    profiles_of,
    transfers_of,
)

SOURCE = "analyzer"
SLOW_ITERATIONS_MIN = 4
"""At the new pace, before all nodes are asked: medians of fewer are of single iterations."""
ASK_ANYWAY = timedelta(seconds=3)
STEPS_FIRST = 20
"""Steps that all nodes have told, before they may be taken in place of what repeats in their collectives."""
FINER_THAN_STEPS = 1.5

OLD = timedelta(seconds=30)
"""Iterations from before say nothing of now."""

Said = Event | SlowWanted


class Analysis:
    """One look at a job, from the question to the finding."""

    def __init__(self, wanted: SlowWanted, began: datetime, *, asked_by: str = "", tests: bool = True) -> None:
        self.wanted = wanted
        self.began = began
        self.asked_by = asked_by
        self.may_test = tests
        self.change: PaceChange | None = None
        self.told: dict[int, CollectivesProfiled] = {}
        self.tested: dict[SlowStage, dict[int, SlownessTested]] = {"hold": {}, "transfers": {}}
        self.profiles: Profiles | None = None
        self.located: Located | None = None
        self.passes: Passes = ()
        self.tests: SlowTests | None = None


class FailSlow:
    """One job. `pending` is what is still to be said, in order; `said` takes from it."""

    def __init__(self, job: str, policy: SlowPolicy) -> None:
        self.job = job
        self._policy = policy
        self._generation = 0
        self._pace = JobPace(policy.slower_by)
        self._newest: dict[int, int] = {}
        self._told_steps = 0
        self._told_iterations = 0
        self._by_steps = False
        self._onset: tuple[PaceChange, str, datetime] | None = None
        self._pending: list[Said] = []
        self.analysis: Analysis | None = None
        self.heard_at: datetime | None = None

    # --- what is seen -----------------------------------------------------------------------------

    def take(self, event: StepsMeasured, now: datetime) -> None:
        """Take in the iterations of one node."""
        generation = event.generation or 0
        # Agents say their last measurements again to a bus that lost them: what a job was once is no news.
        if generation < self._generation or now - event.at > OLD:
            return
        if generation > self._generation:
            self._begin(generation)
        self.heard_at = now
        for sample in self._samples(event):
            if sample.iteration <= self._newest.get(sample.rank, -1):
                continue
            self._newest[sample.rank] = sample.iteration
            for change in self._pace.observe(sample):
                self._changed(change, event, now)
        if self._onset is not None and self._is_ripe(now):
            change, cause, _ = self._onset
            self._onset = None
            self._ask(derived_id(cause, "slow"), now, change=change)

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
        """Whether steps tell the pace better.

        DDP calls its collectives from C++, where nobody sees them; what repeats more often than steps is a part of one.
        """
        self._told_steps += steps
        self._told_iterations += len(event.iterations)
        if self._told_steps < STEPS_FIRST:
            return False
        return not self._told_iterations or self._told_iterations > FINER_THAN_STEPS * self._told_steps

    def take_profile(self, event: CollectivesProfiled) -> None:
        """What a node tells of its ranks."""
        if self.analysis is not None and event.asked == self.analysis.wanted.id and self.analysis.tests is None:
            self.analysis.told[event.node_rank] = event

    def take_tests(self, event: SlownessTested) -> None:
        """What a node has measured."""
        if self.analysis is not None and event.asked == self.analysis.wanted.id:
            self.analysis.tested[event.stage][event.node_rank] = event

    def by_hand(self, asked: str, asked_by: str, now: datetime, *, tests: bool) -> None:
        """Somebody wants to know."""
        self._ask(asked, now, asked_by=asked_by, tests=tests)

    # --- what is said -----------------------------------------------------------------------------

    def due(self, now: datetime) -> tuple[Said, ...]:
        """What is to be said now."""
        if self.analysis is not None:
            self._go_on(self.analysis, now)
        return tuple(self._pending)

    def said(self, what: Said) -> None:
        """This was said."""
        self._pending = [other for other in self._pending if other is not what]

    # --- tracking ---------------------------------------------------------------------------------

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._pace = JobPace(self._policy.slower_by)
        self._newest.clear()
        self._told_steps = self._told_iterations = 0
        self._by_steps = False
        self._onset = None
        self.analysis = None

    def _changed(self, change: PaceChange, cause: StepsMeasured, now: datetime) -> None:
        is_onset = change.direction == "onset"
        common: dict[str, Any] = {
            # Seen twice, it is the same finding to the letter: the record has it once.
            **self._common(derived_id(cause.id, change.direction, change.iteration), cause.at, cause.id),
            "before_s": change.before_s,
            "after_s": change.after_s,
            "healthy_s": change.healthy_s,
            "iteration": change.iteration,
            "detected_after": change.detected_after,
            "ranks": change.ranks,
        }
        if is_onset:
            found = FailSlowOnset(**common, symptom=TableOne.MFU_DECLINE)
            self._pending.append(found)
            self._onset = (change, found.id, now) if self._policy.locate and self.analysis is None else None
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

    # --- locating ---------------------------------------------------------------------------------

    def _ask(
        self, asked: str, now: datetime, *, change: PaceChange | None = None, asked_by: str = "", tests: bool = True
    ) -> None:
        until = now + timedelta(seconds=self._policy.answer_s)
        iterations = ITERATIONS_MAX if change is None else min(ITERATIONS_MAX, max(2, self._slow_for(change)))
        wanted = SlowWanted(id=asked, job=self.job, generation=self._generation, until=until, iterations=iterations)
        self.analysis = Analysis(wanted, now, asked_by=asked_by, tests=tests and (self._policy.test or bool(asked_by)))
        self.analysis.change = change
        self._pending.append(wanted)

    def _go_on(self, analysis: Analysis, now: datetime) -> None:
        if analysis.tests is None:
            self._profiled(analysis, now)
        else:
            assert analysis.profiles is not None
            assert analysis.located is not None
            self._tested(analysis, analysis.profiles, analysis.located, analysis.tests, now)

    def _profiled(self, analysis: Analysis, now: datetime) -> None:
        told = analysis.told
        nnodes = max((event.nnodes for event in told.values()), default=1)
        if len(told) < nnodes and now < analysis.wanted.until:
            return
        analysis.profiles = profiles = profiles_of(told)
        if profiles is None:
            self._end(analysis, Judged(cause="unknown", summary="no node tells how its ranks spend their time"), now)
            return
        if not profiles.works:
            summary = (
                "what its ranks call shows no iterations: collectives that C++ calls, as DDP's, have no times here"
            )
            self._end(analysis, Judged(cause="unknown", summary=summary), now)
            return
        analysis.located = profiles.locate()
        may_test = analysis.may_test and len(told) == nnodes and bool(analysis.located.suspicions)
        hold = hold_of(profiles, analysis.located, self._policy, now) if may_test else None
        if hold is None:
            self._end(analysis, by_collectives(profiles, analysis.located), now)
            return
        analysis.tests, analysis.passes = hold
        self._pending.append(self._wanted(analysis, analysis.tests.until, tests=analysis.tests))

    def _tested(
        self, analysis: Analysis, profiles: Profiles, located: Located, tests: SlowTests, now: datetime
    ) -> None:
        held = analysis.tested["hold"]
        done = analysis.tested["transfers"] if tests.passes else held
        if len(done) < len(analysis.told) and now < tests.until:
            return
        # A rank that goes on trains over the links that are to be tested.
        all_held = len(held) == len(analysis.told) and all(event.held for event in held.values())
        if analysis.passes and not tests.passes and all_held:
            analysis.tests = transfers_of(profiles, tests, analysis.passes, self._policy, now)
            self._pending.append(self._wanted(analysis, analysis.tests.until, tests=analysis.tests))
            return
        tested = [event for stage in analysis.tested.values() for event in stage.values()]
        self._end(analysis, by_tests(profiles, located, tested, self._policy), now)

    def _wanted(self, analysis: Analysis, until: datetime, **stage: Any) -> SlowWanted:
        return SlowWanted(id=analysis.wanted.id, job=self.job, generation=self._generation, until=until, **stage)

    def _end(self, analysis: Analysis, judged: Judged, now: datetime) -> None:
        profiles, change = analysis.profiles, analysis.change
        if analysis.tests is not None:
            until = max(analysis.tests.until, now) + timedelta(seconds=self._policy.answer_s)
            self._pending.append(self._wanted(analysis, until, is_over=True))
        pace_s = profiles.pace_s if profiles else 0.0
        healthy_s = change.healthy_s if change is not None else profiles.healthy_s if profiles else 0.0
        names = profiles.node if profiles else str
        self._pending.append(
            FailSlowLocated(
                **self._common(derived_id(analysis.wanted.id, "located"), now, analysis.wanted.id),
                asked=analysis.wanted.id,
                fault=judged.cause,
                nodes=tuple(map(names, judged.nodes)),
                ranks=judged.ranks,
                links=tuple((names(sender), names(receiver)) for sender, receiver in judged.links),
                suspects=tuple(map(names, judged.suspects)),
                slowdown=pace_s / healthy_s if pace_s and healthy_s else 1.0,
                is_validated=judged.is_validated,
                pace_s=pace_s,
                healthy_s=healthy_s,
                summary=judged.summary,
                evidence=judged.evidence,
                harmless=judged.harmless,
                **(profiles.shown() if profiles else {}),
                took_s=(now - analysis.began).total_seconds(),
                held_s=max(
                    (event.held_s for stage in analysis.tested.values() for event in stage.values()), default=0.0
                ),
                unanswered=_unanswered(analysis),
                asked_by=analysis.asked_by,
            )
        )
        self.analysis = None

    def _common(self, own_id: str, now: datetime, cause: str) -> dict[str, Any]:
        return {
            "id": own_id,
            "at": now,
            "source": SOURCE,
            "job": self.job,
            "generation": self._generation,
            "cause": cause,
        }


def _unanswered(analysis: Analysis) -> tuple[str, ...]:
    """Nodes that have told how their ranks spend their time, and not what they measured."""
    if analysis.tests is None:
        return ()
    tested = analysis.tested["transfers" if analysis.tests.passes else "hold"]
    return tuple(event.node or "" for rank, event in sorted(analysis.told.items()) if rank not in tested)
