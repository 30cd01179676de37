"""What follows in the world from decisions: where a job's time goes, repairs, and reports of a run's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from holdfast.events import (
    BadNumber,
    ChecksStarted,
    Event,
    Eviction,
    GenerationStarted,
    JobFinished,
    NodeLost,
    NodesRequested,
    NodeStateChanged,
    ReplayStarted,
    Suspension,
)
from holdfast.settings.code import CodePolicy
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.analysis import Analysis
from holdfast_proving.world.effects import Effects
from holdfast_proving.world.machine import Machine
from holdfast_proving.world.training import Run, Training

REPORTED_EVERY_S = 600.0
"""While nothing is wrong, a step is reported this often here; agents do it each second."""

JUDGED_STEPS = CodePolicy().good_after_steps + 2
"""A version of the code counts as good at this step of a run."""


class Lives:
    def __init__(
        self,
        agenda: Agenda,
        trainings: Iterable[Training],
        machines: Mapping[str, Machine],
        analysis: Analysis,
        effects: Effects,
        ended: Callable[[Training], None],
    ) -> None:
        """`ended` is called when a job was given up."""
        self._agenda = agenda
        self._machines = machines
        self._analysis = analysis
        self._effects = effects
        self._ended = ended
        self._trainings = tuple(trainings)
        self._had_bad_numbers: set[str] = set()
        for training in self._trainings:
            training.on_begin.append(partial(self._began, training))

    def watch(self, event: Event) -> None:
        if isinstance(event, Eviction | NodeLost) and event.node:
            self._effects.taken_out(event.node)
        is_left_out = isinstance(event, NodeStateChanged) and event.new_state == "registered"
        if is_left_out and event.node and self._machines[event.node].unfit:
            # People repair a spare machine that fails its self-check, too.
            self._effects.taken_out(event.node)
        training = next((it for it in self._trainings if it.job == event.job), None)
        if training is None:
            return
        at_s = self._agenda.seconds
        match event:
            case GenerationStarted():
                self._stop_steps(training)
                training.book.enter("starting", at_s)
            case ChecksStarted():
                self._stop_steps(training)
                training.book.enter("checks", at_s)
            case ReplayStarted():
                self._stop_steps(training)
                training.book.enter("replay", at_s)
            case NodesRequested() if training.book.total_s and not event.trains_on:
                self._stop_steps(training)
                training.book.enter("waiting_for_machines", at_s)
            case Suspension():
                self._stop_steps(training)
                training.book.enter("pause" if event.pause_s else "waiting_for_machines", at_s)
            case BadNumber():
                self._had_bad_numbers.add(training.job)
            case JobFinished():
                self._stop_steps(training)
                training.book.enter(None if event.outcome == "completed" else "ended", at_s)
                if event.outcome == "completed":
                    training.completed_s = at_s
                else:
                    self._ended(training)
            case _:
                pass

    def _stop_steps(self, training: Training) -> None:
        """A decision ends the run, though its ranks get to know of it a moment later."""
        training.stopped()

    def _began(self, training: Training, run: Run) -> None:
        """Report the first step on every machine, then the step that the job had reached, then now and then."""
        nodes, reached = run.nodes, max(training.newest, training.reached)
        self._agenda.at(training.when(run, run.from_step + 1), partial(self._report_first, training, run))
        restore = training.checkpoints.restores[-1]
        self._machines[nodes[0]].report_restore(run, restore.tier, restore.newest_whole, training.plan.keeps)
        self._analysis.pace(training, run)
        if reached >= run.from_step:
            self._agenda.at(training.when(run, reached + 2), self._machines[nodes[0]].observe)
        self._agenda.after(REPORTED_EVERY_S, partial(self._report, training, run))
        if run.version:
            self._agenda.at(training.when(run, run.from_step + JUDGED_STEPS), self._machines[nodes[0]].observe)
        if run.job in self._had_bad_numbers:
            # An incident of bad numbers ends with a certified step past all that was reached.
            self._analysis.certify_past(training, run, reached)
        if training.plan.steps:
            self._finish_at_last(training, run)

    def _report_first(self, training: Training, run: Run) -> None:
        """Report the first step on every machine once it is made: what slows the run down delays it."""
        first_s = training.when(run, run.from_step + 1)
        if first_s > self._agenda.seconds + 1e-6 and run.is_stepping:
            self._agenda.at(first_s, partial(self._report_first, training, run))
            return
        for node in run.nodes:
            self._machines[node].observe()

    def _report(self, training: Training, run: Run) -> None:
        if run.is_stepping:
            self._machines[run.nodes[0]].observe()
            self._agenda.after(REPORTED_EVERY_S, partial(self._report, training, run))

    def _finish_at_last(self, training: Training, run: Run) -> None:
        """End all ranks with 0 after the last step."""
        if not run.is_stepping:
            return
        last_s = training.when(run, training.plan.steps)
        if last_s > self._agenda.seconds + 1e-6:
            # Again later, since the pace may change.
            self._agenda.at(last_s, partial(self._finish_at_last, training, run))
            return
        training.halt()
        for node in run.nodes:
            self._machines[node].finish_training(run)
