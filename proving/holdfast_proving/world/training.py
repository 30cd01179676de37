"""The training of one job: its runs, its steps and its checkpoints, in coarse time.

A run is one generation: it makes steps once the ranks of all its nodes are there, and none after the first of them is
gone. Between two events a step number is a function of time, so a month costs as much as what happens in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast_proving.scenario.scenario import FaultKind, JobPlan
from holdfast_proving.scenario.versions import digest
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.checkpoints import Checkpoints
from holdfast_proving.world.time_book import Cause, TimeBook
from holdfast_proving.world.turns import Start, Stop

if TYPE_CHECKING:
    from holdfast_proving.world.machine import Machine


PROVEN_STEPS = 200
"""Twice what a version takes to count as good (`[code] good_after_steps`)."""


class Run(msgspec.Struct, eq=False):
    """One generation of a job."""

    job: str
    generation: int
    at_most: int | None
    version: str = ""
    """Version of the job's code that it runs."""
    up: dict[str, int] = {}
    """Its machines, in the order of their node ranks once all are there."""
    from_step: int = 0
    began_s: float | None = None
    """When its first step began; None before."""
    halted_s: float | None = None
    mark_s: float = 0.0
    mark_step: int = 0
    slowed_by: dict[int, float] = {}
    """Factor of each fault that slows it down."""
    was_slowed: bool = False
    still_since_s: float = 0.0
    """Time of its last pause: until `mark_s`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self.up, key=self.up.__getitem__))

    @property
    def is_stepping(self) -> bool:
        return self.began_s is not None and self.halted_s is None

    @property
    def slowdown(self) -> float:
        return max(self.slowed_by.values(), default=1.0)

    def has(self, kind: FaultKind) -> bool:
        """Return True unless the fault is a bug of code that does not run here."""
        return kind.version in ("", self.version)


class Training:
    """What is true of a job's training; its owner submits it again under a new name after it ended."""

    def __init__(
        self, plan: JobPlan, agenda: Agenda, machines: Mapping[str, Machine], versions: Iterable[str] = ()
    ) -> None:
        self.plan = plan
        self.versions = {digest(plan, version): version for version in versions}
        """Versions of its code, by their digests."""
        self.proven_s: dict[str, float] = {}
        """Time at which a run on a version had made enough steps to prove that version sound."""
        self.agenda = agenda
        self.checkpoints = Checkpoints(self, machines)
        self.book = TimeBook()
        self.job = ""
        self.run: Run | None = None
        self.reached = 0
        """Newest sound step ever made."""
        self.newest = 0
        """Newest step ever made in this line of checkpoints, sound or not."""
        self.poisoned_from: int | None = None
        """First step of the spoiled state, if the state is spoiled now."""
        self.shown_from: int | None = None
        """First step whose numbers show that; None: silently."""
        self.completed_s: float | None = None
        self.starts: list[Start] = []
        self.stops: list[Stop] = []
        self.on_join: list[Callable[[Run, str], None]] = []
        """Called with each machine whose ranks run."""
        self.on_begin: list[Callable[[Run], None]] = []
        self.on_halt: list[Callable[[Run], None]] = []

    @property
    def is_complete(self) -> bool:
        return self.completed_s is not None

    # --- life -------------------------------------------------------------------------------------

    def submitted(self, job: str) -> None:
        """Begin a new life under this name: what was in memory is gone."""
        self.job, self.run = job, None
        self.checkpoints.submitted()
        self.book.enter("waiting_for_machines", self.agenda.seconds)

    def joined(
        self, run_of: tuple[str, int], machine: str, node_rank: int, at_most: int | None, code: str | None
    ) -> None:
        """Note that the ranks of a machine run; with the last one the run begins after its warm-up."""
        job, generation = run_of
        if job != self.job or (self.run is not None and generation < self.run.generation):
            return
        if self.run is None or generation > self.run.generation:
            self.halt()
            version = self.versions[code] if code else ""
            self.run = Run(job=job, generation=generation, at_most=at_most, version=version, up={}, slowed_by={})
        run = self.run
        run.up[machine] = node_rank
        for listener in self.on_join:
            listener(run, machine)
        if len(run.up) == self.plan.nodes and run.halted_s is None:
            self.agenda.after(self.plan.first_step_s, lambda: self._begin(run))

    def left(self, run_of: tuple[str, int], machine: str) -> None:
        """Note that ranks of a machine are gone: no step follows."""
        run = self.run
        if run is not None and (run.job, run.generation) == run_of and machine in run.up:
            self.halt()
            del run.up[machine]

    def _begin(self, run: Run, has_fetched: bool = False) -> None:
        if run is not self.run or run.halted_s is not None:
            return
        if not has_fetched and (fetch_s := self.checkpoints.fetch_s(run)):
            self.agenda.after(fetch_s, lambda: self._begin(run, has_fetched=True))
            return
        run.from_step = self.checkpoints.restore(run).step
        if self.poisoned_from is not None and run.from_step < self.poisoned_from:
            self.poisoned_from = None
        if self.shown_from is not None and run.from_step < self.shown_from:
            self.shown_from = None
        is_spoiled, is_corrupt = self.shown_from is not None, self.poisoned_from is not None
        self.starts.append(Start(self.agenda.seconds, run.job, run.generation, run.from_step, is_spoiled, is_corrupt))
        run.began_s = run.mark_s = self.agenda.seconds
        run.mark_step = run.from_step
        self.book.enter(None, self.agenda.seconds)
        self.checkpoints.began(run)
        for listener in self.on_begin:
            listener(run)

    def stopped(self) -> None:
        """Note that a decision ends the run, and end it."""
        run = self.run
        if run is not None and run.is_stepping:
            is_spoiled, is_slow = self.shown_from is not None, bool(run.slowed_by)
            self.stops.append(Stop(self.agenda.seconds, run.job, run.nodes, is_spoiled, is_slow))
        self.halt()

    def halt(self) -> None:
        """No step follows in the present run. What was sealed stays."""
        run = self.run
        if run is None or run.halted_s is not None:
            return
        run.halted_s = self.agenda.seconds
        if run.began_s is None:
            return
        step = self.step(run)
        self._account(run, step)
        self.newest = step
        if step - run.from_step >= PROVEN_STEPS:
            self.proven_s.setdefault(run.version, self.agenda.seconds)
        self.checkpoints.halted(run)
        self.book.enter("unnoticed", self.agenda.seconds)
        for listener in self.on_halt:
            listener(run)

    def _account(self, run: Run, step: int) -> None:
        assert run.began_s is not None
        pace_s = self.plan.step_s
        sound = step if self.poisoned_from is None else min(step, self.poisoned_from - 1)
        new = max(0, sound - max(self.reached, run.from_step))
        redone = max(0, min(sound, self.reached) - run.from_step)
        made = step - run.from_step
        self.reached = max(self.reached, sound)
        self.book.spend("productive", new * pace_s)
        self.book.spend("redone", redone * pace_s)
        spoiled = 0 if self.shown_from is None else max(0, step - max(self.shown_from - 1, run.from_step))
        self.book.spend("spoiled", spoiled * pace_s)
        if corrupt := made - new - redone - spoiled:
            self.book.spend("corrupt", corrupt * pace_s)
        # Without slowness the rest is a step that was begun and not completed.
        rest: Cause = "slow" if run.was_slowed else "redone"
        self.book.spend(rest, self.agenda.seconds - run.began_s - made * pace_s)

    def settle(self) -> None:
        """Account for all time up to now, at the end of the simulation."""
        if self.run is not None and self.run.is_stepping:
            self._account(self.run, self.step(self.run))
        else:
            self.book.enter(None, self.agenda.seconds)

    @property
    def thrown_away_s(self) -> float:
        """Training time that a restart would give up now."""
        run = self.run
        if run is None or not run.is_stepping or self.plan.keeps == "memory":
            return 0.0
        return (self.step(run) - self.checkpoints.newest_on_disk) * self.plan.step_s

    @property
    def productive_s(self) -> float:
        """Time of the new and sound steps that were made by now, at the healthy pace."""
        run, reached = self.run, self.reached
        if run is not None and run.is_stepping:
            step = self.step(run)
            reached = max(reached, step if self.poisoned_from is None else min(step, self.poisoned_from - 1))
        return reached * self.plan.step_s

    # --- steps ------------------------------------------------------------------------------------

    def step(self, run: Run) -> int:
        """Return the last step that the run has completed by now."""
        if run.began_s is None:
            return -1
        until_s = self.agenda.seconds if run.halted_s is None else run.halted_s
        # While training is paused, the mark lies ahead.
        return run.mark_step + max(0, int((until_s - run.mark_s) / (self.plan.step_s * run.slowdown) + 1e-9))

    def when(self, run: Run, step: float) -> float:
        """Return the time at which the run completes this step, at its present pace."""
        return run.mark_s + (step - run.mark_step) * self.plan.step_s * run.slowdown

    def last_sign_s(self, run: Run) -> float:
        """Return when the ranks last wrote to their ledgers, which they do many times a step."""
        if run.halted_s is not None:
            return run.halted_s
        return run.still_since_s if run.mark_s > self.agenda.seconds else self.agenda.seconds

    def slow_down(self, run: Run, fault: int, factor: float | None) -> None:
        """Change the pace from now on; None: this fault no longer slows it down."""
        step = self.step(run)
        run.mark_s += (step - run.mark_step) * self.plan.step_s * run.slowdown
        run.mark_step = step
        if factor is None:
            run.slowed_by.pop(fault, None)
        else:
            run.slowed_by[fault] = factor
            run.was_slowed = True

    def pause_training(self, run: Run, seconds: float) -> None:
        """Make no step for a while; the one under way is begun again."""
        run.was_slowed, run.still_since_s = True, self.agenda.seconds
        run.mark_step = self.step(run)
        run.mark_s = max(run.mark_s, self.agenda.seconds) + seconds

    def poison(self, is_silent: bool = False) -> int | None:
        """Spoil the state from the next step on; return the first step that shows it, None if no step is made now."""
        if self.run is None or not self.run.is_stepping:
            return None
        step = self.step(self.run) + 1
        if self.poisoned_from is None:
            self.poisoned_from = step
        if is_silent:
            return step
        if self.shown_from is None:
            self.shown_from = step
        return self.shown_from
