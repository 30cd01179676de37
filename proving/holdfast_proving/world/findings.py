"""The analyzer's findings, modelled: when they come, and how often they name the right machine.

A scenario gives delays and shares (`found_after_s`, `naming`), as `bench/findings.py` measures them of the engines.
With `analyzer = "engines"` the production analyzer finds, from `evidence/`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.events import (
    BadNumber,
    Event,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    HangFound,
    StepsCertified,
    StepTimeMeasured,
    TelemetryAnomaly,
)
from holdfast.ids import named_id
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.training import Run, Training

CERTIFIED_AFTER = 10
"""Sound steps that must follow before a step is certified, as `[corruption] certified_after_steps`."""
CERTIFIED_EVERY_S = 2.0
SLOW_AFTER_STEPS = 5
"""Slow steps until slowness is found, and fast ones until it is found over. Before that nothing is located."""
ANOMALY_AFTER_S = 120.0
"""Time until a drift is found, as the analyzer judges the last two minutes."""


class Findings:
    """The model, as `Analysis`."""

    def __init__(self, agenda: Agenda, publish: Callable[[Event], None]) -> None:
        self._agenda = agenda
        self._publish = publish
        self._number = 0

    def _find(self, kind: type[Event], run: Run, /, **fields: Any) -> None:
        self._number += 1
        at = self._agenda.now()
        id_ = named_id(at, run.job, kind.__name__, self._number)
        fields = {"job": run.job, "generation": run.generation, **fields}
        self._publish(kind(id=id_, at=at, source="analyzer", **fields))

    def pace(self, training: Training, run: Run) -> None:
        """Measure the pace once the run has made a few steps."""
        step_s = training.plan.step_s

        def measured() -> None:
            if run.halted_s is None:
                self._find(StepTimeMeasured, run, median_s=step_s, p99_s=1.2 * step_s, samples=10)

        self._agenda.after(10 * step_s, measured)

    def hang(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        """Find that no step follows, and name what the stacks show."""
        chance = fault.stream(f"naming/{run.job}/{run.generation}")
        after_s = max(fault.kind.found_after_s, 3 * training.plan.step_s) * chance.uniform(0.8, 1.2)
        since = self._agenda.now()
        named = self._named(run, fault, machine, chance)
        is_machine = len(named) == 1 and chance.random() < fault.kind.naming.is_certain
        is_convincing = len(named) > 1 and chance.random() < fault.kind.naming.is_convincing

        def found() -> None:
            self._find(
                HangFound,
                run,
                trace=named_id(since, run.job, run.generation, "trace"),
                sign="waiting",
                since=since,
                still_s=after_s,
                limit_s=after_s / 2,
                phase="train",
                step=training.step(run),
                nodes=named,
                scope=("nobody", "machine", "group")[min(len(named), 2)],
                confidence=0.9 if len(named) == 1 else 0.6 if named else 0.0,
                is_machine=is_machine,
                group=named if is_convincing else (),
                summary=f"{', '.join(named)} block the others" if named else "",
            )

        self._agenda.after(after_s, found)

    def slowness(self, training: Training, run: Run, fault: Fault, machine: str | None) -> None:
        """Locate what slows the job down, by tests or by stacks."""
        chance = fault.stream(f"slow/{run.job}/{run.generation}")
        named = self._named(run, fault, machine, chance)
        pace_s = training.plan.step_s * fault.kind.slowdown

        def located() -> None:
            if run.halted_s is not None or fault.number not in run.slowed_by:
                return
            alone = len(named) == 1
            self._find(
                FailSlowLocated,
                run,
                asked=named_id(self._agenda.now(), run.job, "asked", fault.number),
                fault="computation" if named else "unknown",
                nodes=named if alone else (),
                one_of=() if alone else named,
                confidence=1.0 if alone else 0.9,
                is_validated=alone,
                slowdown=fault.kind.slowdown,
                pace_s=pace_s,
                healthy_s=training.plan.step_s,
                summary=f"tests name {', '.join(named)}" if named else "no machine is named",
            )

        def began() -> None:
            if run.halted_s is None and fault.number in run.slowed_by:
                self._find(
                    FailSlowOnset,
                    run,
                    before_s=training.plan.step_s,
                    after_s=pace_s,
                    healthy_s=training.plan.step_s,
                    iteration=training.step(run),
                    detected_after=SLOW_AFTER_STEPS,
                )

        onset_s = SLOW_AFTER_STEPS * pace_s
        self._agenda.after(onset_s, began)
        self._agenda.after(max(onset_s, fault.kind.found_after_s * chance.uniform(0.8, 1.2)), located)

    def relief(self, training: Training, run: Run, fault: Fault) -> None:
        """Find that the job is back at its pace."""
        step_s = training.plan.step_s

        def relieved() -> None:
            if run.halted_s is None and not run.slowed_by:
                self._find(
                    FailSlowRelieved,
                    run,
                    before_s=step_s * fault.kind.slowdown,
                    after_s=step_s,
                    healthy_s=step_s,
                    iteration=training.step(run),
                    detected_after=SLOW_AFTER_STEPS,
                    is_over=True,
                )

        self._agenda.after(SLOW_AFTER_STEPS * step_s, relieved)

    def bad_numbers(self, training: Training, run: Run, fault: Fault, step: int) -> None:
        """Find bad numbers some steps after the state was spoiled."""
        if fault.kind.is_false:
            return
        after_s = max(fault.kind.found_after_s, 2 * training.plan.step_s)

        def found() -> None:
            if run.halted_s is None and training.shown_from is not None and training.shown_from <= step:
                # The step that a run goes on from was certified before.
                certified = max(0, step - CERTIFIED_AFTER, min(run.from_step, step - 1))
                self._find(BadNumber, run, step=step, quantity="loss", kind="nan", certified=certified)

        self._agenda.after(after_s, found)

    def drift(self, training: Training, run: Run, fault: Fault, machine: str) -> None:
        """Find the anomaly, and again as long as it lasts."""

        def differs() -> None:
            is_over = self._agenda.seconds > fault.since_s + fault.lasts_s and fault.kind.lasts == "while"
            if run.halted_s is None and not is_over:
                self._find(TelemetryAnomaly, run, by="metrics", nodes=(machine,), reason="its memory grows")
                self._agenda.after(TelemetryPolicy().again_after_s, differs)

        self._agenda.after(ANOMALY_AFTER_S, differs)

    def pause(self, training: Training, run: Run, fault: Fault) -> None:
        """Nothing follows."""

    def certify_until(self, training: Training, run: Run, until_s: float) -> None:
        def certify() -> None:
            step = training.step(run)
            if not run.is_stepping or training.shown_from is not None or self._agenda.seconds > until_s:
                return
            if step - run.from_step > CERTIFIED_AFTER:
                self._find(StepsCertified, run, step=step - CERTIFIED_AFTER, newest_step=step)
            self._agenda.at(max(training.when(run, step + 1), self._agenda.seconds + CERTIFIED_EVERY_S), certify)

        certify()

    def certify_past(self, training: Training, run: Run, step: int) -> None:
        """Report a certified step once enough sound steps followed `step`."""

        def certified() -> None:
            if run.halted_s is not None or training.shown_from is not None:
                return
            newest = training.step(run)
            if newest < step + CERTIFIED_AFTER:
                self._agenda.at(training.when(run, step + CERTIFIED_AFTER + 1), certified)
            else:
                self._find(StepsCertified, run, step=newest - CERTIFIED_AFTER, newest_step=newest)

        self._agenda.at(training.when(run, step + CERTIFIED_AFTER + 1), certified)

    @staticmethod
    def _named(run: Run, fault: Fault, machine: str | None, chance: Random) -> tuple[str, ...]:
        naming, drawn = fault.kind.naming, chance.random()
        others = [node for node in run.nodes if node != machine]
        if drawn < naming.wrong:
            return (chance.choice(others),) if others else ()
        if machine is None or machine not in run.up:
            return ()
        if drawn < naming.wrong + naming.machine:
            return (machine,)
        if drawn < naming.wrong + naming.machine + naming.group and others:
            place = run.nodes.index(machine)
            first = place - place % naming.group_size
            return run.nodes[first : first + naming.group_size]
        return ()
