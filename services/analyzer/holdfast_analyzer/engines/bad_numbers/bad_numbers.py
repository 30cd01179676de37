"""The last certified step of a job, and the first step whose numbers show a fault. Pure; in memory only.

The theory is ADR 10. Samples come from every node, in batches that may be lost, repeated or late. Each batch counts the
samples before it, so gaps are seen: after a gap the clean steps are counted from zero, and samples from before it can
still show a fault but certify nothing. A step is complete when all ranks have reported it. Ranks complete their steps
in order, so steps complete in order too. Some scripts report NaN for a rank that never has a number: a rank's NaN
before its first number is no reading.

A loss that is not finite waits, for a moment, for what other nodes report of that step: a number that was reduced over
all ranks is bad on all of them, so the order of the reports names no rank.

A quantity that no rank reports by the library is read from the training logs, if there are any (ADR 10). A log may be
late: its numbers show faults, but certify steps only if the library reports no quantity at all.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.events import BadNumber, NumbersLogged, StepsCertified, StepsMeasured
from holdfast.events.parts.samples import LoggedSample, StepSample
from holdfast.ids import derived_id
from holdfast.settings.findings.corruption import CorruptionPolicy
from holdfast_analyzer.engines.bad_numbers.logged_steps import LoggedSteps
from holdfast_analyzer.engines.bad_numbers.readings import (
    QUANTITIES,
    NumberFault,
    NumberReading,
    OpenStep,
    Quantity,
    WaitingFault,
    fault_of,
    not_finite,
    reading_of,
)

SOURCE = "analyzer"
EMIT_EVERY = timedelta(seconds=2)
COMPARED_WITHIN = timedelta(seconds=2)
"""Most time that a fault waits for what other nodes report of its step. Agents report every second."""
LEVEL_STEPS = 32
"""Number of clean steps whose median is the running level."""
LEVEL_STEPS_MIN = 8
"""With fewer there is no level: the first steps of a training are far above the rest."""
INCOMPLETE_MAX = 1000
"""Most steps that wait for a rank's report. Ranks are never that far apart: older ones were lost."""


class StoredNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of a job's state: no later sample repeats it."""

    job: str
    generation: int
    certified: int | None = None
    levels: dict[str, float] = {}
    levels_from: int = 0
    """First of the steps that the levels are taken from."""
    judged: int = -1
    """Newest step of the generation that was judged."""
    numbered: dict[str, tuple[int, ...]] = {}
    """Ranks that have reported a number, by quantity: a NaN from one of them is a fault."""
    logged: dict[str, tuple[int, ...]] = {}
    """Ranks whose training logs have had a number, by quantity."""
    waiting: WaitingFault | None = None


class BadNumbers:
    """The numbers of one job's newest generation. A repeated event changes nothing; findings stay until committed."""

    def __init__(self, job: str, policy: CorruptionPolicy, known: StoredNumbers | None = None) -> None:
        self.job = job
        self._policy = policy
        self._generation = known.generation if known else 0
        self._certified = known.certified if known else None
        self._levels: dict[Quantity, deque[tuple[int, float]]] = {
            name: deque(maxlen=LEVEL_STEPS) for name in QUANTITIES
        }
        for name in QUANTITIES:
            if known and name in known.levels:
                self._levels[name].extend([(known.levels_from, known.levels[name])] * LEVEL_STEPS_MIN)
        numbered = known.numbered if known else {}
        self._numbered: dict[Quantity, set[int]] = {name: set(numbered.get(name, ())) for name in QUANTITIES}
        logged = known.logged if known else {}
        self._logged: dict[Quantity, set[int]] = {name: set(logged.get(name, ())) for name in QUANTITIES}
        self._stored_numbered = self._count_numbered()
        self.has_news = False
        """True if `known()` must be stored although there is no finding."""
        self._emitted_certified = (self._generation, self._certified)
        self._emitted_at: datetime | None = None
        self._left: BadNumber | None = None
        """Finding of an earlier generation that is not committed."""
        self._start(known.waiting if known else None)
        # The bus may deliver the steps of this generation again, to be compared with a level that is of later ones.
        self._judged_before = known.judged if known else -1

    def _start(self, waiting: WaitingFault | None = None) -> None:
        self._positions: dict[str, int] = {}
        self._incomplete: dict[int, OpenStep] = {}
        self._newest = -1
        self._clean: deque[int] = deque(maxlen=self._policy.certified_after_steps)
        self._runs: dict[Quantity, list[NumberFault]] = {name: [] for name in QUANTITIES}
        self._logged_steps = LoggedSteps()
        self._logged_runs: dict[tuple[int, Quantity], list[NumberFault]] = {}
        # What had come of the other nodes is half a comparison, and the rest comes no more.
        self._fault = msgspec.structs.replace(waiting.fault, elsewhere="") if waiting else None
        self._emitted_fault: NumberFault | None = None
        self._waits: tuple[str, datetime] | None = (waiting.cause, waiting.since) if waiting else None
        """The event that showed the fault, and when: other nodes have not reported of its step yet."""

    def take(self, event: StepsMeasured) -> None:
        generation = event.generation or 0
        if generation < self._generation or not event.samples:
            return
        if generation > self._generation:
            if self._waits is not None and self._fault is not None:
                # Its ranks ended before all had reported.
                self._left = self._bad_number(self._fault, *self._waits)
            self._begin(generation, event)
        samples = sorted(event.samples, key=lambda sample: sample.step)
        for sample in samples:
            if sample.loss is not None:
                self._numbered["loss"].add(sample.rank)
            if sample.grad_norm is not None:
                self._numbered["grad_norm"].add(sample.rank)
            if "loss" in sample.not_finite and sample.rank in self._numbered["loss"]:
                self._find(fault_of(not_finite("loss", sample), None))
        if self._is_next(event):
            for sample in samples:
                self._count(sample, event.node or "", event.world_size)

    def take_logged(self, event: NumbersLogged) -> None:
        if (event.generation or 0) != self._generation:
            # No step of that generation is known yet.
            return
        arrives = self._logged_steps.arrives(event)
        if arrives is None:
            return
        if arrives is False:
            self._doubt_logged()
        certifies = not any(self._numbered.values())
        for sample in event.samples:
            self._logged_steps.reached(sample)
            self._judge_logged(sample, event)
            if self._fault is None and certifies:
                for step in self._logged_steps.passed():
                    if not self._clean or step > self._clean[-1]:
                        self._add_clean(step)

    def _judge_logged(self, sample: LoggedSample, event: NumbersLogged) -> None:
        is_clean, readings = True, list[NumberReading]()
        for name in QUANTITIES:
            reading = None if self._numbered[name] else reading_of(name, sample)
            if reading is None or (reading.value is None and sample.rank not in self._logged[name]):
                continue
            run = self._logged_runs.setdefault((sample.rank, name), [])
            suspect = self._suspect(reading)
            if suspect is None:
                run.clear()
                readings.append(reading)
                if sample.rank not in self._logged[name]:
                    self._logged[name].add(sample.rank)
                    self.has_news = True
                continue
            is_clean = False
            tag = event.tags.get(name, "")
            run.append(msgspec.structs.replace(suspect, told_by=event.kind, tag=tag, logged_step=sample.logged_step))
            if name == "loss" and suspect.value is None:
                self._find(run[-1])
            if len(run) == self._steps_of_fault(name):
                self._find(run[0])
        if not is_clean:
            self._doubt_logged()
        elif readings and self._fault is None:
            for reading in readings:
                assert reading.value is not None
                self._levels[reading.quantity].append((reading.step, reading.value))
            self._logged_steps.clean(sample.step)

    def _doubt_logged(self) -> None:
        self._logged_steps.doubt()
        self._clean.clear()

    def doubt(self, step: int) -> None:
        """Withdraw the certificates from this step on."""
        if self._certified is not None:
            self._certified = max(0, min(self._certified, step - 1))
        self._clean.clear()

    def _begin(self, generation: int, event: StepsMeasured) -> None:
        began_from = max(0, min(sample.step for sample in event.samples) - 1)
        if self._generation == 0 and event.before == 0:
            # The job's starting point counts as sound: there is no better knowledge. Generations without a step have
            # not changed it.
            self._certified = began_from
        elif self._certified is not None:
            # It may have gone back further than needed, and repeats steps whose certificate does not hold any more.
            self._certified = min(self._certified, began_from)
        for readings in self._levels.values():
            # A repeated step is not compared with later ones.
            while readings and readings[-1][0] > began_from:
                readings.pop()
        self._generation = generation
        self._judged_before = -1
        self._start()
        self._newest = began_from
        # Or the next analyzer would take the following generation for the job's beginning.
        self.has_news = True

    def _is_next(self, event: StepsMeasured) -> bool:
        """Return True if the batch is no repetition; note a gap before it."""
        expected = self._positions.get(event.node or "")
        if expected is not None and event.before < expected:
            return False
        if event.missed or (expected is not None and event.before > expected):
            self._clean.clear()
        self._positions[event.node or ""] = event.before + len(event.samples) + event.missed
        return True

    def _count(self, sample: StepSample, node: str, world_size: int) -> None:
        step = self._incomplete.setdefault(sample.step, OpenStep())
        step.reports += 1
        for name in QUANTITIES:
            if (reading := reading_of(name, sample)) is None:
                continue
            if reading.value is None and sample.rank not in self._numbered[name]:
                step.unknown[name] = reading
            else:
                step.add(reading, node)
        if step.reports == world_size:
            self._complete(sample.step, self._incomplete.pop(sample.step))
        elif len(self._incomplete) > INCOMPLETE_MAX:
            del self._incomplete[min(self._incomplete)]

    def _complete(self, number: int, step: OpenStep) -> None:
        self._newest = max(self._newest, number)
        if self._count_numbered() > self._stored_numbered:
            # Not before all ranks have reported: one row instead of one for each node.
            self.has_news = True
        for name, reading in step.unknown.items():
            if self._level(name) is not None:
                # There were numbers before, and now no rank has one.
                step.worst.setdefault(name, reading)
        if not step.worst or number <= self._judged_before:
            return
        is_clean = True
        for name, reading in step.worst.items():
            suspect = self._suspect(reading)
            if suspect is None:
                self._runs[name].clear()
                continue
            is_clean = False
            suspect = msgspec.structs.replace(suspect, elsewhere=self._elsewhere(name, step))
            self._compared(suspect)
            self._runs[name].append(suspect)
            if len(self._runs[name]) == self._steps_of_fault(name):
                self._find(self._runs[name][0])
        if not is_clean:
            self._clean.clear()
        elif self._fault is None:
            for name, reading in step.worst.items():
                assert reading.value is not None
                self._levels[name].append((number, reading.value))
            self._add_clean(number)

    def _elsewhere(self, name: Quantity, step: OpenStep) -> Literal["", "sound", "bad"]:
        other = step.elsewhere.get(name)
        if other is None:
            return ""
        return "sound" if self._suspect(other) is None else "bad"

    def _compared(self, suspect: NumberFault) -> None:
        """Note what other nodes reported of the step of a fault that was found before they had."""
        fault = self._fault
        if fault is None or fault == self._emitted_fault:
            return
        if (fault.step, fault.quantity) == (suspect.step, suspect.quantity):
            self._fault = msgspec.structs.replace(fault, elsewhere=suspect.elsewhere)

    def _add_clean(self, number: int) -> None:
        self._clean.append(number)
        if len(self._clean) == self._clean.maxlen:
            self._certified = max(self._certified or 0, self._clean[0] - 1)

    def _suspect(self, reading: NumberReading) -> NumberFault | None:
        level = self._level(reading.quantity)
        if reading.value is None:
            return fault_of(reading, level)
        if level is None or level <= 0 or reading.value < self._policy.jump_factor * level:
            return None
        return fault_of(reading, level)

    def _level(self, name: Quantity) -> float | None:
        readings = self._levels[name]
        return statistics.median(value for _, value in readings) if len(readings) >= LEVEL_STEPS_MIN else None

    def _count_numbered(self) -> int:
        return sum(len(ranks) for ranks in (*self._numbered.values(), *self._logged.values()))

    def _steps_of_fault(self, name: Quantity) -> int:
        return self._policy.loss_jump_steps if name == "loss" else self._policy.grad_norm_steps

    def _find(self, fault: NumberFault) -> None:
        if self._fault is None or fault.step < self._fault.step:
            self._fault = msgspec.structs.replace(fault, level=self._level(fault.quantity))
            self.doubt(fault.step)

    def overdue(self, now: datetime) -> tuple[BadNumber | StepsCertified, ...]:
        """Return the finding of a fault that has waited long enough for the reports of other nodes."""
        if self._waits is None or now - self._waits[1] < COMPARED_WITHIN:
            return ()
        return self.findings(self._waits[0], now)

    def findings(self, cause: str, now: datetime) -> tuple[BadNumber | StepsCertified, ...]:
        """Return the findings to emit: of faults only the earliest, and again if an earlier one is found later."""
        found: list[BadNumber | StepsCertified] = [] if self._left is None else [self._left]
        fault = self._fault
        if fault is not None and fault != self._emitted_fault:
            fault = self._fault = self._with_others(fault)
        if fault is not None and fault != self._emitted_fault and not self._waits_for_others(fault, cause, now):
            found.append(self._bad_number(fault, cause, now))
        is_news = self._certified is not None and self._emitted_certified != (self._generation, self._certified)
        if is_news and (self._emitted_at is None or now - self._emitted_at >= EMIT_EVERY):
            assert self._certified is not None
            found.append(
                StepsCertified(
                    **self._common(cause, now),
                    id=derived_id(cause, "steps certified"),
                    step=self._certified,
                    newest_step=max(self._newest, self._certified),
                )
            )
        return tuple(found)

    def _bad_number(self, fault: NumberFault, cause: str, now: datetime) -> BadNumber:
        return BadNumber(
            **self._common(cause, now),
            **msgspec.structs.asdict(fault),
            id=derived_id(cause, "bad number"),
            certified=self._certified,
        )

    def _common(self, cause: str, now: datetime) -> dict[str, Any]:
        return {"at": now, "source": SOURCE, "job": self.job, "generation": self._generation, "cause": cause}

    def _with_others(self, fault: NumberFault) -> NumberFault:
        step = self._incomplete.get(fault.step)
        if step is None or fault.told_by:
            return fault
        return msgspec.structs.replace(fault, elsewhere=self._elsewhere(fault.quantity, step))

    def _waits_for_others(self, fault: NumberFault, cause: str, now: datetime) -> bool:
        step = self._incomplete.get(fault.step)
        reporting = len(self._numbered[fault.quantity])
        if step is None or fault.told_by or step.readings.get(fault.quantity, 0) >= reporting:
            return False
        if self._waits is None:
            self._waits = (cause, now)
            # No later sample repeats it to an analyzer that is restarted meanwhile.
            self.has_news = True
        return now - self._waits[1] < COMPARED_WITHIN

    def known(self, found: Sequence[BadNumber | StepsCertified] = ()) -> StoredNumbers:
        """Return what to store together with these findings."""
        levels: dict[str, float] = {name: level for name in QUANTITIES if (level := self._level(name)) is not None}
        waiting = None
        if self._fault and self._waits and not any(isinstance(finding, BadNumber) for finding in found):
            waiting = WaitingFault(fault=self._fault, cause=self._waits[0], since=self._waits[1])
        return StoredNumbers(
            job=self.job,
            generation=self._generation,
            certified=self._certified,
            levels=levels,
            judged=max(self._newest, self._judged_before),
            levels_from=min((self._levels[name][0][0] for name in QUANTITIES if name in levels), default=0),
            numbered={name: tuple(sorted(ranks)) for name, ranks in self._numbered.items() if ranks},
            logged={name: tuple(sorted(ranks)) for name, ranks in self._logged.items() if ranks},
            waiting=waiting,
        )

    def stored(self, known: StoredNumbers) -> None:
        self._stored_numbered = sum(len(ranks) for ranks in (*known.numbered.values(), *known.logged.values()))
        self.has_news = False

    def committed(self, finding: BadNumber | StepsCertified) -> None:
        if isinstance(finding, StepsCertified):
            self._emitted_certified, self._emitted_at = (self._generation, finding.step), finding.at
        elif finding == self._left:
            self._left = None
        else:
            self._emitted_fault, self._waits = self._fault, None
