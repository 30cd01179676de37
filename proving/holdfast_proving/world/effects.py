"""True faults applied to the world: when they begin and end, what they do to machines and jobs, when they show again.

A lasting fault shows after a training time of its own: while its machine trains no job, or the job makes no progress,
that time does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast_proving.scenario.last_words import LAST_WORDS, LastWords
from holdfast_proving.scenario.scenario import ABSENCES, Scenario
from holdfast_proving.truth.faults import Fault
from holdfast_proving.truth.generator import HOUR_S
from holdfast_proving.truth.ledger import Ledger, Showing
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.analysis import Analysis
from holdfast_proving.world.checkpoints import watch_s
from holdfast_proving.world.machine import Machine
from holdfast_proving.world.training import Run, Training

AT_START_S = (0.5, 3.0)
"""When a fault shows that does so at each start."""
BACK_WITHIN_S = 60.0
"""Machines that lost power together come back within this time of each other."""
AT_FORK_S = (0.7, 0.9)
"""When a fault shows that does so before the first step, and when others notice."""
CASCADE_S = (0.02, 3.0)
LOOKED_PAST_S = 5.0


class Live(msgspec.Struct, eq=False):
    """A fault that lasts, and the training time until it shows next in each job."""

    fault: Fault
    exposure: Random
    left_s: float
    since_s: dict[str, float] = {}
    """For each job that trains under it: since when."""
    bad_step: int | None = None
    is_over: bool = False
    taken_out: bool = False


class Effects:
    def __init__(
        self,
        scenario: Scenario,
        agenda: Agenda,
        ledger: Ledger,
        machines: Mapping[str, Machine],
        trainings: Iterable[Training],
        analysis: Analysis,
        noise: Random,
    ) -> None:
        self._scenario = scenario
        self._agenda = agenda
        self._ledger = ledger
        self._machines = machines
        self._trainings = tuple(trainings)
        self._analysis = analysis
        self._noise = noise
        self._live: dict[int, Live] = {}
        self.on_power: list[Callable[[float], None]] = []
        """Called with the time at which machines went or came back."""
        self.on_silence: list[Callable[[Fault], None]] = []
        """Called when messages of all machines begin to be held up."""
        for training in self._trainings:
            training.on_join.append(partial(self._ranks_run, training))
            training.on_begin.append(partial(self._run_began, training))
            training.on_halt.append(partial(self._run_halted, training))

    def expect(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self._agenda.at(fault.since_s, partial(self._begin, fault))
            if fault.kind.effect == "bad_numbers":
                for training in self._trainings:
                    before_s = fault.since_s - watch_s(training.plan.step_s)
                    self._agenda.at(before_s, partial(self._approach, fault, training))

    # --- beginning and end ------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        self._ledger.begin(fault, self._agenda.seconds)
        kind = fault.kind
        exposure = fault.stream("exposure")
        live = Live(fault=fault, exposure=exposure, left_s=self._until_next(fault, exposure), since_s={})
        self._raise_alerts(live)
        if kind.lasts == "moment":
            for training in self._concerned(fault):
                self._show(live, training)
            live.is_over = True
            self._ledger.end(fault, self._agenda.seconds, "passed")
            return
        self._live[fault.number] = live
        if kind.effect == "lost":
            self._take_away(live)
        elif kind.effect == "drained":
            for machine in fault.machines:
                self._machines[machine].shut_down()
        elif kind.effect == "silence":
            for listener in self.on_silence:
                listener(fault)
        if kind.lasts == "while":
            self._agenda.after(fault.lasts_s, partial(self._end, live, "passed"))
        for training in self._concerned(fault):
            assert training.run is not None
            if kind.effect == "pause":
                self._analysis.pause(training, training.run, fault)
                training.pause_training(training.run, fault.lasts_s)
            self._expose(live, training, training.run)

    def _end(self, live: Live, how: str) -> None:
        if live.is_over:
            return
        fault, live.is_over = live.fault, True
        del self._live[fault.number]
        self._ledger.end(fault, self._agenda.seconds, how)
        for machine in fault.machines:
            if fault.kind.effect in ABSENCES:
                self._agenda.after(self._noise.uniform(0.0, BACK_WITHIN_S), partial(self._bring_back, machine))
            self._clear(fault, self._machines[machine])
        for training in self._trainings:
            if training.run is not None and fault.number in training.run.slowed_by:
                training.slow_down(training.run, fault.number, None)
                if training.run.is_stepping:
                    self._analysis.relief(training, training.run, fault)

    def mended(self, job: str) -> None:
        """Note that people have mended the code and the data of a job that ended."""
        for live in [it for it in self._live.values() if it.fault.place == job]:
            self._end(live, "mended")

    def fails_at(self, training: Training) -> tuple[int, LastWords] | None:
        """Return the step at which code or data end every rank of a job, and how; None if nothing does."""
        run = training.run
        for live in self._live.values():
            is_of_job = live.fault.place == training.plan.name and run is not None and run.has(live.fault.kind)
            if live.bad_step is not None and is_of_job and live.fault.kind.effect == "crash":
                return live.bad_step, LAST_WORDS[live.fault.kind.prints]
        return None

    def taken_out(self, machine: str) -> None:
        """Note that a machine was evicted or lost: people begin to repair what is wrong with it."""
        for live in list(self._live.values()):
            fault = live.fault
            if fault.kind.lasts == "repair" and fault.machines == (machine,) and not live.taken_out:
                live.taken_out = True
                self._agenda.after(fault.lasts_s, partial(self._end, live, "repaired"))

    def _take_away(self, live: Live) -> None:
        """Switch the machines of a fault off. A peer may notice before the silence does."""
        for machine in live.fault.machines:
            training = next((it for it in self._concerned(live.fault) if it.run and machine in it.run.up), None)
            if training is not None and training.run is not None:
                self._note(live.fault, training.run, machine)
                chance = live.fault.stream(f"cascade/{machine}")
                if chance.random() < self._scenario.cascade_share:
                    self._cascade(training.run, live.fault.machines, chance)
                self._report_last_step(training.run, live.fault.machines)
            self._machines[machine].switch_off()
        self._note_power()
        if live.fault.kind.lasts == "repair":
            for machine in live.fault.machines:
                self.taken_out(machine)

    def _bring_back(self, machine: str) -> None:
        self._machines[machine].switch_on()
        self._note_power()

    def _note_power(self) -> None:
        for listener in self.on_power:
            listener(self._agenda.seconds)

    # --- exposure ---------------------------------------------------------------------------------

    def _until_next(self, fault: Fault, exposure: Random) -> float:
        mean_s = fault.kind.again_h * HOUR_S
        return exposure.expovariate(1.0 / mean_s) if mean_s else exposure.uniform(*AT_START_S)

    def _concerned(self, fault: Fault) -> list[Training]:
        """Return the trainings that make steps in reach of a fault."""
        return [
            training
            for training in self._trainings
            if training.run is not None
            and training.run.is_stepping
            and training.run.has(fault.kind)
            and training.plan.ranks_per_node > fault.kind.over_ranks
            and (fault.place == training.plan.name or any(machine in training.run.up for machine in fault.machines))
        ]

    def _ranks_run(self, training: Training, run: Run, machine: str) -> None:
        """Have faults show that do so before the first step."""
        for live in self._live.values():
            if live.fault.kind.at_start and machine in live.fault.machines:
                after_s = live.exposure.uniform(*AT_FORK_S)
                self._agenda.after(after_s, partial(self._show_at_start, live, training, run, machine))

    def _show_at_start(self, live: Live, training: Training, run: Run, machine: str) -> None:
        if not live.is_over and run is training.run and machine in run.up:
            self._note(live.fault, run, machine)
            self._crash(live.fault, run, machine, live.exposure)

    def _run_began(self, training: Training, run: Run) -> None:
        for live in list(self._live.values()):
            if training in self._concerned(live.fault):
                self._expose(live, training, run)

    def _run_halted(self, training: Training, run: Run) -> None:
        for live in self._live.values():
            if (since_s := live.since_s.pop(training.plan.name, None)) is not None:
                live.left_s = max(0.0, live.left_s - (self._agenda.seconds - since_s))

    def _expose(self, live: Live, training: Training, run: Run) -> None:
        fault = live.fault
        if fault.kind.at_start:
            return
        if fault.kind.effect == "slow":
            training.slow_down(run, fault.number, fault.kind.slowdown)
            self._note(fault, run, fault.machines[0] if fault.machines else "")
            self._analysis.slowness(training, run, fault, fault.culprit)
            return
        if fault.kind.effect == "drift":
            self._note(fault, run, fault.machines[0])
            self._analysis.drift(training, run, fault, fault.machines[0])
        if fault.kind.effect in ("lost", "drained", "alert", "drift", "pause", "silence"):
            return
        after_s = live.left_s
        if live.bad_step is not None:
            # In the midst of the step: the last step that its ranks have completed is the same each time.
            after_s = max(0.0, training.when(run, live.bad_step - 0.5) - self._agenda.seconds)
        else:
            live.since_s[training.plan.name] = self._agenda.seconds
        if fault.kind.effect == "bad_numbers":
            self._look_ahead(training, run, self._agenda.seconds + after_s)

        def due() -> None:
            if run.is_stepping and not live.is_over:
                self._show(live, training)

        self._agenda.after(after_s, due)

    def _approach(self, fault: Fault, training: Training) -> None:
        """Look at a job that a fault is about to begin in."""
        if training in self._concerned(fault) and training.run is not None:
            self._look_ahead(training, training.run, fault.since_s)

    def _look_ahead(self, training: Training, run: Run, bad_s: float) -> None:
        """Have copies and certified steps be reported for some time before numbers go bad.

        Agents do that all the time. Quiet minutes are left out: what vaults kept in them is replaced by what they keep
        when it matters.
        """

        def begin() -> None:
            if run.is_stepping:
                training.checkpoints.watch(run, bad_s + LOOKED_PAST_S)
                self._analysis.certify_until(training, run, bad_s + LOOKED_PAST_S)

        self._agenda.at(max(self._agenda.seconds, bad_s - watch_s(training.plan.step_s)), begin)

    # --- effects ----------------------------------------------------------------------------------

    def _show(self, live: Live, training: Training) -> None:
        """Have the effect on a training that makes steps."""
        fault, run = live.fault, training.run
        if run is None or not run.is_stepping:
            return
        machine = self._place_in(live, run)
        live.since_s.pop(training.plan.name, None)
        live.left_s = self._until_next(fault, live.exposure)
        match fault.kind.effect:
            case "crash":
                self._note(fault, run, machine)
                if fault.kind.same_step and live.bad_step is None:
                    live.bad_step = training.step(run) + 1
                self._crash(fault, run, machine, live.exposure)
            case "hang":
                self._note(fault, run, machine)
                training.halt()
                self._report_last_step(run, ())
                self._analysis.hang(training, run, fault, machine if fault.machines else None)
            case "bad_numbers" if fault.kind.is_silent:
                self._note(fault, run, machine, training.poison(is_silent=True) or 0)
            case "bad_numbers":
                step = training.step(run) + 1 if fault.kind.is_false else training.poison()
                if step is not None:
                    if fault.kind.same_step and live.bad_step is None:
                        live.bad_step = step
                    self._note(fault, run, machine, step)
                    self._analysis.bad_numbers(training, run, fault, step)
            case "slow" | "lost" | "drained" | "alert" | "drift" | "pause" | "silence":
                return

    def _place_in(self, live: Live, run: Run) -> str:
        here = [machine for machine in live.fault.machines if machine in run.up] or list(run.nodes)
        return here[0] if len(here) == 1 else live.exposure.choice(here)

    def _note(self, fault: Fault, run: Run, machine: str, step: int = 0) -> None:
        at_s = self._agenda.seconds
        self._ledger.show(
            Showing(at_s=at_s, fault=fault.number, job=run.job, generation=run.generation, machine=machine, step=step)
        )

    def _crash(self, fault: Fault, run: Run, machine: str, chance: Random) -> None:
        words = LAST_WORDS[fault.kind.prints]
        if chance.random() < self._scenario.cascade_share:
            self._cascade(run, (machine,), chance)
        self._report_last_step(run, ())
        self._machines[machine].end_rank(words, chance)

    def _cascade(self, run: Run, gone: Iterable[str], chance: Random) -> None:
        """Have a neighbour report that it lost its peer."""
        left = [node for node in run.nodes if node not in gone]
        if left:
            neighbour, fence_of = self._machines[chance.choice(left)], (run.job, run.generation)
            within_s = CASCADE_S if run.is_stepping else AT_FORK_S
            self._agenda.after(chance.uniform(*within_s), partial(_lose_peer, neighbour, fence_of, chance))

    def _report_last_step(self, run: Run, gone: Iterable[str]) -> None:
        """Have an agent report the last step within a second, as all of them do."""
        left = [node for node in run.nodes if node not in gone]
        if left:
            self._agenda.after(self._noise.uniform(0.1, 1.0), self._machines[left[0]].observe)

    # --- alerts -----------------------------------------------------------------------------------

    def _raise_alerts(self, live: Live) -> None:
        fault, plan = live.fault, live.fault.kind.alert
        if plan is None:
            return
        chance = fault.stream("alert")
        for name in fault.machines:
            if chance.random() < plan.chance * fault.kind.alert_share:
                after_s = plan.after_s * chance.uniform(0.5, 1.5)
                self._agenda.after(after_s, partial(self._raise, live, self._machines[name]))

    def _raise(self, live: Live, machine: Machine) -> None:
        fault, plan = live.fault, live.fault.kind.alert
        assert plan is not None
        is_moment = fault.kind.lasts == "moment"
        if live.is_over and not is_moment:
            return
        machine.alert(state="alert", is_momentary=is_moment, detail=f"{plan.symptom} seen", **_alert_of(fault))
        if plan.confidence == "evict" and not is_moment:
            machine.unfit[fault.number] = plan.check
            machine.report_fitness()
        if plan.again_s and not is_moment:
            self._agenda.after(plan.again_s, partial(self._raise, live, machine))

    def _clear(self, fault: Fault, machine: Machine) -> None:
        if fault.kind.alert is None:
            return
        machine.alert(state="cleared", detail="it is over", **_alert_of(fault))
        if machine.unfit.pop(fault.number, None) is not None:
            machine.report_fitness()


def _alert_of(fault: Fault) -> dict[str, Any]:
    plan = fault.kind.alert
    assert plan is not None
    names = ("check", "device", "symptom", "confidence", "shared")
    return {name: getattr(plan, name) for name in names}


def _lose_peer(machine: Machine, of_run: tuple[str, int], chance: Random) -> None:
    training = machine.training
    if training is not None and training.run is not None and (training.run.job, training.run.generation) == of_run:
        machine.end_rank(LAST_WORDS["peer"], chance)
