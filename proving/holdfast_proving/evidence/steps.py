"""Steps of ranks as agents publish them: durations, iterations, losses and gradient norms.

Agents publish them every second. Here a run's first steps come in one message of each node, and later ones only while
somebody follows the run, beginning with the steps before (`STEPS_BEFORE`), as after an outage of the bus.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast.events import Event, StepsMeasured
from holdfast.events.parts.samples import IterationSample, StepSample
from holdfast.ids import named_id
from holdfast_proving.evidence.numbers import FALSE_STEPS, Numbers, sound, spoiled
from holdfast_proving.evidence.paces import TRANSFER_SHARE
from holdfast_proving.scenario.forms import NumberForm
from holdfast_proving.world.agenda import Agenda, moment_of
from holdfast_proving.world.training import Run, Training

FIRST_STEPS = 10
"""Steps of each run that are published: its pace and its levels follow from them."""
STEPS_BEFORE = 40
"""Steps before an incident that are published: the tracker of paces needs 22, the certificate of steps 11."""
JITTER = 0.004


class Spoil(msgspec.Struct, frozen=True):
    """Wrong numbers of a training: their form, the first step that shows them, and where they show first."""

    form: NumberForm
    step: int
    nodes: frozenset[str]
    is_false: bool = False

    def holds(self, step: int, shown_from: int | None) -> bool:
        if self.is_false:
            return self.step <= step < self.step + FALSE_STEPS[self.form]
        return shown_from is not None and step >= self.step


class _Reported(msgspec.Struct):
    """What the agents of one run have published."""

    run: Run
    step: int
    before: int = 0
    """Steps of each rank that were published."""
    follow_to: float = 0.0
    is_followed: bool = False
    paces: list[tuple[int, float]] = []
    """From which step on a step takes how long."""


class StepReports:
    def __init__(self, agenda: Agenda, publish: Callable[[Event], None], is_full: bool) -> None:
        """`is_full`: publish every step, as agents do."""
        self._agenda = agenda
        self._publish = publish
        self._is_full = is_full
        self._runs: dict[str, _Reported] = {}
        """By job plan: the newest run's."""
        self._spoils: dict[str, Spoil] = {}

    def began(self, training: Training, run: Run) -> None:
        known = _Reported(run, run.from_step, paces=[])
        self._runs[training.plan.name] = known
        self.paced(training, run)
        spoil = self._spoils.get(training.plan.name)
        if spoil is not None and not spoil.is_false and training.shown_from is None:
            del self._spoils[training.plan.name]
        if self._is_full:
            self.follow(training, run, math.inf)
        else:
            first_s = training.when(run, run.from_step + FIRST_STEPS)
            self._agenda.at(first_s, partial(self._report_to, training, run, run.from_step + FIRST_STEPS))

    def paced(self, training: Training, run: Run) -> None:
        """Note that the run's pace is another one from its present step on."""
        self._runs[training.plan.name].paces.append((training.step(run), training.plan.step_s * run.slowdown))

    def spoil(self, training: Training, spoil: Spoil) -> None:
        """Have numbers be wrong from a step on; what is wrong already stays so."""
        if not self._has_spoil(training):
            self._spoils[training.plan.name] = spoil

    def _has_spoil(self, training: Training) -> bool:
        known = self._spoils.get(training.plan.name)
        return known is not None and not known.is_false and training.shown_from is not None

    def follow(self, training: Training, run: Run, steps: float) -> None:
        """Publish each of the next steps as it ends."""
        known = self._runs.get(training.plan.name)
        if known is None or known.run is not run or not run.is_stepping:
            return
        known.follow_to = max(known.follow_to, training.step(run) + steps)
        if not self._is_full:
            self._report_to(training, run, training.step(run))
        if not known.is_followed:
            known.is_followed = True
            self._follow(training, known)

    def leave(self, training: Training, run: Run) -> None:
        """Stop following a run."""
        known = self._runs.get(training.plan.name)
        if known is not None and known.run is run and not self._is_full:
            known.follow_to = 0.0

    def recall(self, training: Training, run: Run, steps: int) -> None:
        """Publish the last steps of the first node: for what is judged by hundreds of steps of any rank."""
        if not self._is_full:
            step = training.step(run)
            self._report(training, run, max(run.from_step, step - steps), step, run.nodes[:1], is_again=True)

    def _follow(self, training: Training, known: _Reported) -> None:
        run = known.run
        if not run.is_stepping or training.step(run) >= known.follow_to:
            known.is_followed = False
            return
        self._report_to(training, run, training.step(run))
        self._agenda.at(training.when(run, training.step(run) + 1) + 1e-6, partial(self._follow, training, known))

    def _report_to(self, training: Training, run: Run, step: int) -> None:
        """Publish the steps up to this one that were not published; of very many the last."""
        known = self._runs[training.plan.name]
        if known.run is not run or step > training.step(run) or step <= known.step:
            return
        first = known.step if self._is_full else max(known.step, step - STEPS_BEFORE)
        known.step = step
        self._report(training, run, first, step, run.nodes)

    def _report(
        self,
        training: Training,
        run: Run,
        after: int,
        last: int,
        nodes: tuple[str, ...],
        *,
        is_again: bool = False,
    ) -> None:
        """`is_again`: the steps count as a repetition, since other nodes do not report them."""
        known, plan = self._runs[training.plan.name], training.plan
        now, steps = self._agenda.now(), range(after + 1, last + 1)
        if not steps or not nodes:
            return
        durations_s = {step: self._duration_s(known, step) for step in steps}
        common: dict[str, Any] = {"at": now, "job": run.job, "generation": run.generation}
        for node in nodes:
            node_rank = run.up.get(node)
            if node_rank is None:
                continue
            first = node_rank * plan.ranks_per_node
            ranks = range(first, first + plan.ranks_per_node)
            rows = [(step, self._numbers(training, step, node)) for step in steps]
            self._publish(
                StepsMeasured(
                    **common,
                    id=named_id(now, node, run.job, run.generation, "steps", last),
                    source=f"agent/{node}",
                    node=node,
                    samples=tuple(
                        _sample(rank, step, durations_s[step], numbers, moment_of(self._ended_s(training, run, step)))
                        for step, numbers in rows
                        for rank in ranks
                    ),
                    before=0 if is_again else known.before * len(ranks),
                    world_size=plan.nodes * plan.ranks_per_node,
                    iterations=tuple(
                        IterationSample(
                            rank=first,
                            iteration=step - run.from_step,
                            duration_s=durations_s[step],
                            in_calls_s=TRANSFER_SHARE * durations_s[step],
                        )
                        for step in steps
                    ),
                )
            )
        if not is_again:
            known.before += len(steps)

    @staticmethod
    def _duration_s(known: _Reported, step: int) -> float:
        # A pace that is noted after step 9 is that of step 10.
        place = bisect_right(known.paces, step - 1, key=lambda pace: pace[0])
        pace_s = known.paces[max(0, place - 1)][1]
        return pace_s * (1.0 + JITTER * (Random(step).random() - 0.5))

    def _ended_s(self, training: Training, run: Run, step: int) -> float:
        return min(self._agenda.seconds, training.when(run, step))

    def _numbers(self, training: Training, step: int, node: str) -> Numbers:
        numbers, spoil = sound(step), self._spoils.get(training.plan.name)
        if spoil is None or not spoil.holds(step, training.shown_from):
            return numbers
        wrong = spoiled(spoil.form, numbers)
        # Its own loss shows it in the same step, those of others after the exchange of gradients.
        return wrong if step > spoil.step or node in spoil.nodes else numbers._replace(norm=wrong.norm)


def _sample(rank: int, step: int, duration_s: float, numbers: Numbers, ended_at: Any) -> StepSample:
    read = {"loss": numbers.loss, "grad_norm": numbers.norm}
    finite = {name: value if math.isfinite(value) else None for name, value in read.items()}
    return StepSample(
        rank=rank,
        step=step,
        ended_at=ended_at,
        duration_s=duration_s,
        loss=finite["loss"],
        grad_norm=finite["grad_norm"],
        not_finite={name: str(value) for name, value in read.items() if not math.isfinite(value)},
    )
