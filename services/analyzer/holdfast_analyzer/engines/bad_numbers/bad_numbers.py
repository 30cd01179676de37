"""Which steps of a job are known to be clean, and from which one on its numbers are spoiled. Pure; in memory only.

The theory is ADR 10. Samples come from every node, in batches that may be lost, repeated or late; each says how many
came before it. What follows a gap counts anew, and what comes from behind a gap says nothing good any more, only bad.
A step is complete when all ranks have said it: ranks complete their steps in turn, so steps complete in turn as well.
What is no number from the beginning is how some scripts say that a rank has none, so it counts as no reading.

A quantity that no rank has told by the library is taken from the training logs, if there are any (ADR 10). A log says
its numbers when it likes: they find faults, and certify only where the library tells of no quantity at all.
"""

from __future__ import annotations

import statistics
from collections import deque
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.events import BadNumber, NumbersLogged, StepsCertified, StepsMeasured
from holdfast.events.parts.samples import LoggedSample, StepSample
from holdfast.ids import derived_id
from holdfast.settings.corruption import CorruptionPolicy
from holdfast_analyzer.engines.bad_numbers.logged_steps import LoggedSteps

SOURCE = "analyzer"
SAY_EVERY = timedelta(seconds=2)
LEVEL_STEPS = 32
"""Clean steps whose median is the running level."""
LEVEL_STEPS_MIN = 8
"""Before that there is no level: the first steps of a training are far above all that follow."""
INCOMPLETE_MAX = 1000
"""Steps that some rank has not said yet. Ranks are never that far apart: what waits longer was lost."""

Quantity = Literal["loss", "grad_norm"]
Kind = Literal["nan", "inf", "jump"]
QUANTITIES: tuple[Quantity, ...] = ("loss", "grad_norm")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A number that is no number of a sound training, or is far from the others. `value` None: it is not finite."""

    step: int
    quantity: Quantity
    kind: Kind
    rank: int | None = None
    value: float | None = None
    level: float | None = None
    told_by: Literal["", "tensorboard", "wandb"] = ""
    tag: str = ""
    logged_step: int | None = None


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job and would not come again with its next samples."""

    job: str
    generation: int
    certified: int | None = None
    levels: dict[str, float] = {}
    levels_from: int = 0
    """The first of the steps that the levels are of."""
    numbered: dict[str, tuple[int, ...]] = {}
    """The ranks that have read a number: what is none of theirs is a fault."""
    logged: dict[str, tuple[int, ...]] = {}
    """The same of the ranks' training logs."""


class _Step(msgspec.Struct):
    """What ranks said of a step: how many, and of each quantity the worst; apart from it, what ranks said of which no
    number is known.
    """

    said: int = 0
    worst: dict[Quantity, Fault] = msgspec.field(default_factory=dict)
    unknown: dict[Quantity, Fault] = msgspec.field(default_factory=dict)


class BadNumbers:
    """The numbers of one job's newest generation. `take` twice is as good as once; `findings` until they are said."""

    def __init__(self, job: str, policy: CorruptionPolicy, known: Known | None = None) -> None:
        """`known` is what an analyzer before this one had found out."""
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
        self._kept_numbered = self._count_numbered()
        self.has_news = False
        """Whether `known` has what no finding comes with and an analyzer after this one could not do without."""
        self._said_certified = (self._generation, self._certified)
        self._said_at: datetime | None = None
        self._start()

    def _start(self) -> None:
        self._positions: dict[str, int] = {}
        self._incomplete: dict[int, _Step] = {}
        self._newest = -1
        self._clean: deque[int] = deque(maxlen=self._policy.certified_after_steps)
        self._runs: dict[Quantity, list[Fault]] = {name: [] for name in QUANTITIES}
        self._logged_steps = LoggedSteps()
        self._logged_runs: dict[tuple[int, Quantity], list[Fault]] = {}
        self._fault: Fault | None = None
        self._said_fault: Fault | None = None

    # --- what is seen -----------------------------------------------------------------------------

    def take(self, event: StepsMeasured) -> None:
        """Take in the samples of one node."""
        generation = event.generation or 0
        if generation < self._generation or not event.samples:
            return
        if generation > self._generation:
            self._begin(generation, event)
        samples = sorted(event.samples, key=lambda sample: sample.step)
        for sample in samples:
            if sample.loss is not None:
                self._numbered["loss"].add(sample.rank)
            if sample.grad_norm is not None:
                self._numbered["grad_norm"].add(sample.rank)
            if "loss" in sample.not_finite and sample.rank in self._numbered["loss"]:
                self._find(_not_finite("loss", sample))
        if self._is_next(event):
            for sample in samples:
                self._count(sample, event.world_size)

    def take_logged(self, event: NumbersLogged) -> None:
        """Take in what the ranks of one node wrote into a training log."""
        if (event.generation or 0) != self._generation:
            # Of a generation that no step is known of nothing can be told.
            return
        arrives = self._logged_steps.arrives(event)
        if arrives is None:
            return
        if arrives is False:
            self._doubt_logged()
        certifies = not any(self._numbered.values())
        for sample in event.samples:
            self._logged_steps.came_to(sample)
            self._judge_logged(sample, event)
            if self._fault is None and certifies:
                for step in self._logged_steps.passed():
                    if not self._clean or step > self._clean[-1]:
                        self._add_clean(step)

    def _judge_logged(self, sample: LoggedSample, event: NumbersLogged) -> None:
        is_clean, readings = True, list[Fault]()
        for name in QUANTITIES:
            reading = None if self._numbered[name] else _reading(name, sample)
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
        """Somebody found fault with this step: it is not clean, nor is what came after it."""
        if self._certified is not None:
            self._certified = max(0, min(self._certified, step - 1))
        self._clean.clear()

    def _begin(self, generation: int, event: StepsMeasured) -> None:
        began_from = max(0, min(sample.step for sample in event.samples) - 1)
        if self._generation == 0 and event.before == 0:
            # What the job was given to start from: nobody could know better that it is sound. Generations that came to
            # no step have changed nothing of it.
            self._certified = began_from
        elif self._certified is not None:
            # It may have gone back further than it had to, and what it makes since is not what was certified.
            self._certified = min(self._certified, began_from)
        for readings in self._levels.values():
            # Steps that it makes anew are not measured by what came after them.
            while readings and readings[-1][0] > began_from:
                readings.pop()
        self._generation = generation
        self._start()
        self._newest = began_from
        # Or the next analyzer would take the generation after this one for the job's beginning.
        self.has_news = True

    def _is_next(self, event: StepsMeasured) -> bool:
        """Whether this is what should come next of its node."""
        expected = self._positions.get(event.node or "")
        if expected is not None and event.before < expected:
            return False
        if event.missed or (expected is not None and event.before > expected):
            self._clean.clear()
        self._positions[event.node or ""] = event.before + len(event.samples) + event.missed
        return True

    def _count(self, sample: StepSample, world_size: int) -> None:
        step = self._incomplete.setdefault(sample.step, _Step())
        step.said += 1
        for name in QUANTITIES:
            if (reading := _reading(name, sample)) is None:
                continue
            if reading.value is None and sample.rank not in self._numbered[name]:
                step.unknown[name] = reading
            else:
                before = step.worst.get(name)
                if before is None or _size(reading) > _size(before):
                    step.worst[name] = reading
        if step.said == world_size:
            self._complete(sample.step, self._incomplete.pop(sample.step))
        elif len(self._incomplete) > INCOMPLETE_MAX:
            del self._incomplete[min(self._incomplete)]

    def _complete(self, number: int, step: _Step) -> None:
        self._newest = max(self._newest, number)
        if self._count_numbered() > self._kept_numbered:
            # Only now that all ranks have said theirs: one row instead of one for each node.
            self.has_news = True
        for name, reading in step.unknown.items():
            if self._level(name) is not None:
                # There were numbers, and nobody has one now.
                step.worst.setdefault(name, reading)
        if not step.worst:
            return
        is_clean = True
        for name, reading in step.worst.items():
            suspect = self._suspect(reading)
            if suspect is None:
                self._runs[name].clear()
                continue
            is_clean = False
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

    def _add_clean(self, number: int) -> None:
        self._clean.append(number)
        if len(self._clean) == self._clean.maxlen:
            self._certified = max(self._certified or 0, self._clean[0] - 1)

    def _suspect(self, reading: Fault) -> Fault | None:
        level = self._level(reading.quantity)
        if reading.value is None:
            return msgspec.structs.replace(reading, level=level)
        if level is None or level <= 0 or reading.value < self._policy.jump_factor * level:
            return None
        return msgspec.structs.replace(reading, level=level)

    def _level(self, name: Quantity) -> float | None:
        readings = self._levels[name]
        return statistics.median(value for _, value in readings) if len(readings) >= LEVEL_STEPS_MIN else None

    def _count_numbered(self) -> int:
        return sum(len(ranks) for ranks in (*self._numbered.values(), *self._logged.values()))

    def _steps_of_fault(self, name: Quantity) -> int:
        return self._policy.loss_jump_steps if name == "loss" else self._policy.grad_norm_steps

    def _find(self, fault: Fault) -> None:
        if self._fault is None or fault.step < self._fault.step:
            self._fault = msgspec.structs.replace(fault, level=self._level(fault.quantity))
            self.doubt(fault.step)

    # --- what is said -----------------------------------------------------------------------------

    def findings(self, cause: str, now: datetime) -> tuple[BadNumber | StepsCertified, ...]:
        """What is to be said now. The fault that came first is said; again, if one turns out to be earlier."""
        found: list[BadNumber | StepsCertified] = []
        common: dict[str, Any] = {
            "at": now,
            "source": SOURCE,
            "job": self.job,
            "generation": self._generation,
            "cause": cause,
        }
        fault = self._fault
        if fault is not None and fault != self._said_fault:
            found.append(
                BadNumber(
                    **common,
                    **msgspec.structs.asdict(fault),
                    id=derived_id(cause, "bad number"),
                    certified=self._certified,
                )
            )
        is_news = self._certified is not None and self._said_certified != (self._generation, self._certified)
        if is_news and (self._said_at is None or now - self._said_at >= SAY_EVERY):
            assert self._certified is not None
            found.append(
                StepsCertified(
                    **common,
                    id=derived_id(cause, "steps certified"),
                    step=self._certified,
                    newest_step=max(self._newest, self._certified),
                )
            )
        return tuple(found)

    def known(self) -> Known:
        """What the next analyzer should know."""
        levels: dict[str, float] = {name: level for name in QUANTITIES if (level := self._level(name)) is not None}
        return Known(
            job=self.job,
            generation=self._generation,
            certified=self._certified,
            levels=levels,
            levels_from=min((self._levels[name][0][0] for name in QUANTITIES if name in levels), default=0),
            numbered={name: tuple(sorted(ranks)) for name, ranks in self._numbered.items() if ranks},
            logged={name: tuple(sorted(ranks)) for name, ranks in self._logged.items() if ranks},
        )

    def kept(self, known: Known) -> None:
        """The next analyzer will know this."""
        self._kept_numbered = sum(len(ranks) for ranks in (*known.numbered.values(), *known.logged.values()))
        self.has_news = False

    def said(self, finding: BadNumber | StepsCertified) -> None:
        """This was said."""
        if isinstance(finding, StepsCertified):
            self._said_certified, self._said_at = (self._generation, finding.step), finding.at
        else:
            self._said_fault = self._fault


def _reading(name: Quantity, sample: StepSample | LoggedSample) -> Fault | None:
    if name in sample.not_finite:
        return _not_finite(name, sample)
    value = sample.loss if name == "loss" else sample.grad_norm
    if value is None:
        return None
    return Fault(step=sample.step, quantity=name, kind="jump", rank=sample.rank, value=value)


def _not_finite(name: Quantity, sample: StepSample | LoggedSample) -> Fault:
    kind: Kind = "nan" if sample.not_finite[name] == "nan" else "inf"
    return Fault(step=sample.step, quantity=name, kind=kind, rank=sample.rank)


def _size(reading: Fault) -> float:
    return float("inf") if reading.value is None else reading.value
