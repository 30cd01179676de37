"""What agents would publish for the analyzer about runs, published where it can matter.

Agents report each second. While nothing happens, no conclusion follows from that, so here reports begin with an
incident: the steps before it in one message of each node, then every step or second until the analyzer has come to a
conclusion. Orders of the analyzer are answered as agents do. `is_full` publishes everything, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from random import Random

import msgspec

from holdfast.events import (
    BadNumber,
    CollectivesProfiled,
    CollectiveTrace,
    Event,
    FailSlowLocated,
    HangFound,
    SlownessTested,
    StackDump,
    StepsMeasured,
    TelemetryMeasured,
)
from holdfast.events.parts.traces import ProcessStacks
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.settings.load import Settings
from holdfast_proving.emulated_hangs.scenes import Seen, observe
from holdfast_proving.evidence.slowness import SlowAnswers
from holdfast_proving.evidence.stacks import TraceAnswers, at_work, hang_in, late_in, writing_in
from holdfast_proving.evidence.steps import FIRST_STEPS, Spoil, StepReports
from holdfast_proving.evidence.telemetry import FOLLOWED, TelemetryReports
from holdfast_proving.scenario.forms import NUMBER_FORMS, NumberForm
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.machine import Machine
from holdfast_proving.world.training import Run, Training

FOR_THE_ANALYZER = (StepsMeasured, TelemetryMeasured, StackDump, CollectiveTrace, CollectivesProfiled, SlownessTested)
"""Types of events that nobody else decides by."""
AWAKE_S = 15.0
"""For so long after a report or an order the analyzer looks at the time: it waits at most ten seconds for answers."""
EARLIEST_STEPS = 4.0
"""No hang is suspected earlier: `[hang] waiting_multiple`."""
ROUNDS_S = 1.0
SELDOM_S, SELDOM_AFTER_S = 5.0, 90.0
GIVEN_UP_S = 1200.0
"""A stall that nothing was found about in this time is left alone."""
SLOW_STEPS_MAX = 60
RELIEF_STEPS = 14
CERTIFY_STEPS = 14
NUMBER_STEPS = 24
"""Steps for which wrong numbers are followed: a gradient norm counts after ten."""


class Evidence:
    """The production analyzer's sources, as `Analysis`."""

    def __init__(
        self,
        agenda: Agenda,
        machines: Mapping[str, Machine],
        trainings: Iterable[Training],
        settings: Settings,
        publish: Callable[[Event], None],
        noise: Random,
        *,
        is_full: bool,
    ) -> None:
        self._agenda = agenda
        self._machines = machines
        self._trainings = tuple(trainings)
        self._noise = noise
        self._is_full = is_full
        self._steps = StepReports(agenda, publish, is_full)
        self._slow = SlowAnswers(agenda, publish, noise, {name: machine.host for name, machine in machines.items()})
        self._traces = TraceAnswers(agenda, publish)
        self._telemetry = TelemetryReports(agenda, settings.telemetry, publish)
        self._every_s = settings.telemetry.every_s
        self._seen: dict[tuple[str, int], Seen] = {}
        """What is seen of the runs that hang."""
        self._found: set[tuple[str, int]] = set()
        self._recalled: set[str] = set()
        signals = settings.signals
        self._level_steps = signals.decline_warm_up_steps + 3 * signals.decline_steps - FIRST_STEPS
        self._decline_steps = signals.decline_warm_up_steps + 2 * signals.decline_steps
        self._awake_until_s = 0.0
        for training in self._trainings:
            training.on_halt.append(partial(self._halted, training))

    def due(self) -> datetime | None:
        """Return the present time while the analyzer has to look at it."""
        return self._agenda.now() if self._agenda.seconds < self._awake_until_s else None

    def _wake(self, for_s: float = AWAKE_S) -> None:
        self._awake_until_s = max(self._awake_until_s, self._agenda.seconds + for_s)

    # --- what happens -----------------------------------------------------------------------------

    def pace(self, training: Training, run: Run) -> None:
        self._steps.began(training, run)

    def hang(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        chance = fault.stream(f"stacks/{run.job}/{run.generation}")
        where = None
        if machine is not None and machine in run.up:
            first = run.up[machine] * training.plan.ranks_per_node
            where = range(first, first + training.plan.ranks_per_node)
        self._seen[run.job, run.generation] = hang_in(training.plan, fault, where, chance)
        earliest_s = 0.0 if self._is_full else EARLIEST_STEPS * training.plan.step_s
        self._agenda.after(earliest_s, partial(self._round, training, run, self._agenda.seconds))

    def pause(self, training: Training, run: Run, fault: Fault) -> None:
        self._seen[run.job, run.generation] = writing_in(training.plan, fault.stream("stacks"))
        self._agenda.after(0.0, partial(self._round, training, run, self._agenda.seconds))
        self._agenda.after(fault.lasts_s, lambda: self._seen.pop((run.job, run.generation), None))

    def _round(self, training: Training, run: Run, since_s: float) -> None:
        """Have every agent report the progress of its ranks."""
        still_s = self._agenda.seconds - since_s
        if training.run is not run or still_s > GIVEN_UP_S or (run.job, run.generation) in self._found:
            return
        if len(run.up) < training.plan.nodes or training.last_sign_s(run) > since_s:
            return
        for node in run.nodes:
            self._machines[node].observe()
        self._wake()
        again_s = ROUNDS_S if still_s < SELDOM_AFTER_S or self._is_full else SELDOM_S
        self._agenda.after(again_s, partial(self._round, training, run, since_s))

    def slowness(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        self._slow.note(fault)
        self._steps.paced(training, run)
        self._steps.follow(training, run, SLOW_STEPS_MAX)
        self._wake()
        if not self._is_full:
            # A run that is slow from its beginning has no level of its own: a comparison with earlier ones shows it.
            declined_s = training.when(run, training.step(run) + self._decline_steps + 5)
            self._agenda.at(declined_s, partial(self._show_decline, training, run))

    def _show_decline(self, training: Training, run: Run) -> None:
        if run.is_stepping and run.slowed_by:
            self._steps.recall(training, run, self._decline_steps + 5 - FIRST_STEPS)
            self._steps.follow(training, run, SLOW_STEPS_MAX)
            self._wake()

    def _halted(self, training: Training, run: Run) -> None:
        """Publish a sound pace once in a job's life, which later runs are compared with."""
        made = 0 if run.was_slowed else training.step(run) - run.from_step
        if run.job not in self._recalled and made > self._level_steps + FIRST_STEPS:
            self._recalled.add(run.job)
            self._steps.recall(training, run, self._level_steps)

    def relief(self, training: Training, run: Run, fault: Fault) -> None:
        self._steps.paced(training, run)
        self._steps.follow(training, run, RELIEF_STEPS)
        self._wake()

    def bad_numbers(self, training: Training, run: Run, fault: Fault, step: int) -> None:
        form: NumberForm = fault.kind.form or fault.stream("form").choice(NUMBER_FORMS)  # type: ignore[assignment]
        shown = step + fault.kind.shows_after_steps
        self._steps.spoil(training, Spoil(form, shown, frozenset(fault.machines), fault.kind.is_false))
        self._steps.follow(training, run, NUMBER_STEPS + fault.kind.shows_after_steps)

    def certify_until(self, training: Training, run: Run, until_s: float) -> None:
        self._steps.follow(training, run, (until_s - self._agenda.seconds) / training.plan.step_s)

    def drift(self, training: Training, run: Run, fault: Fault, machine: str) -> None:
        self._telemetry.drift(training, run, fault, machine)
        self._wake(FOLLOWED * self._every_s)

    def certify_past(self, training: Training, run: Run, step: int) -> None:
        begin_s = training.when(run, max(run.from_step + 1, step))
        self._agenda.at(begin_s, lambda: self._steps.follow(training, run, CERTIFY_STEPS))

    # --- findings of the analyzer -------------------------------------------------------------------

    def watch(self, event: Event) -> None:
        """Stop reports about what the analyzer has come to a conclusion about."""
        if not isinstance(event, HangFound | FailSlowLocated | BadNumber):
            return
        training = next((it for it in self._trainings if it.job == event.job), None)
        run = training.run if training else None
        if training is None or run is None or run.generation != event.generation:
            return
        if isinstance(event, HangFound):
            self._found.add((run.job, run.generation))
        elif isinstance(event, BadNumber) or event.nodes or event.links or event.rounds:
            self._steps.leave(training, run)

    def answer(self, order: TraceOrder | SlowOrder) -> None:
        """Answer as the agents of the job's nodes do."""
        self._wake(max(AWAKE_S, (order.until - self._agenda.now()).total_seconds()))
        training = next((it for it in self._trainings if it.job == order.job), None)
        run = training.run if training else None
        if training is None or run is None or run.generation != order.generation:
            return
        if isinstance(order, SlowOrder):
            self._slow.answer(training, run, order)
        else:
            self._agenda.after(self._noise.uniform(0.1, 1.0), partial(self._trace, training, run, order))

    def _trace(self, training: Training, run: Run, order: TraceOrder) -> None:
        seen = self._seen.get((run.job, run.generation))
        if seen is not None:
            self._traces.answer(run, order, seen)
        elif run.is_stepping:
            late = self._slow.late_nodes(run)
            # The others wait for the last rank in the share of the time that slowness costs.
            if late and self._noise.random() < 1.0 - 1.0 / run.slowdown:
                first = run.up[late[0]] * training.plan.ranks_per_node
                where = range(first, first + training.plan.ranks_per_node)
                seen = observe(late_in(training.plan, where, self._noise), "launched")
                self._traces.answer(run, order, replace(seen, stacks=self._with_waits(run, seen.stacks)))
            else:
                self._traces.answer_with_stacks(run, order, self._with_waits(run, at_work(training.plan)))

    def _with_waits(self, run: Run, stacks: list[ProcessStacks]) -> list[ProcessStacks]:
        """Return the stacks of a slow job with the time that its ranks have waited for processors."""
        shares = self._slow.waited_shares(run)
        return [
            msgspec.structs.replace(it, waited_s=shares.get(int(it.node), 0.0) * self._agenda.seconds) for it in stacks
        ]
