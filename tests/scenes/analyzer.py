"""Two ranks that report their steps, of a noisy training too, and an analyzer that can be restarted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from holdfast import events
from holdfast.effects import Effect
from holdfast.events import AnyEvent, BadNumber, StepsCertified, StepsMeasured
from holdfast.events.parts.samples import StepSample
from holdfast.ids import named_id
from holdfast.settings.load import Settings
from holdfast_analyzer.engines.bad_numbers.bad_numbers import COMPARED_WITHIN, EMIT_EVERY
from holdfast_analyzer.engines.bad_numbers.bad_numbers_engine import KNOWN
from holdfast_analyzer.engines.telemetry.telemetry_engine import MODELS
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("a", "b")
Number = float | None


def noisy(step: int, rng: random.Random) -> float:
    """Return a loss like that of language models: a power law with noise in each batch."""
    return 11.0 * step**-0.2 * rng.lognormvariate(0.0, 0.08)


def spiky(step: int, rng: random.Random) -> float:
    """A gradient norm: high at first, then low, and now and then a bad batch."""
    spike = 20.0 if rng.random() < 0.02 else 1.0
    return (0.4 + 30.0 / step) * rng.lognormvariate(0.0, 0.4) * spike


class Ranks:
    """Two ranks on two nodes that report their steps to the analyzer as JSON."""

    def __init__(self) -> None:
        self.emitted: dict[tuple[str, int], int] = {}
        self.number = 0

    def measured(
        self,
        rank: int,
        steps: Iterable[int],
        loss: Callable[[int], Number] = lambda step: 1.0,
        norm: Callable[[int], Number] = lambda step: None,
        generation: int = 1,
    ) -> StepsMeasured:
        node = NODES[rank]
        samples = tuple(_sample(rank, step, loss(step), norm(step)) for step in steps)
        before = self.emitted.get((node, generation), 0)
        self.emitted[node, generation] = before + len(samples)
        self.number += 1
        event = StepsMeasured(
            id=named_id(START, self.number),
            at=START,
            source=f"agent/{node}",
            node=node,
            job="job",
            generation=generation,
            samples=samples,
            before=before,
            world_size=2,
        )
        decoded = events.decode(events.encode(event))
        assert isinstance(decoded, StepsMeasured)
        return decoded

    def both(self, steps: Iterable[int], generation: int = 1) -> list[StepsMeasured]:
        steps = list(steps)
        return [self.measured(rank, steps, generation=generation) for rank in (0, 1)]


def _sample(rank: int, step: int, loss: Number, norm: Number) -> StepSample:
    read = {"loss": loss, "grad_norm": norm}
    not_finite = {name: str(value) for name, value in read.items() if value is not None and not math.isfinite(value)}
    finite = {name: None if name in not_finite else value for name, value in read.items()}
    return StepSample(rank=rank, step=step, ended_at=START, duration_s=1.0, not_finite=not_finite, **finite)  # type: ignore[arg-type]


class Scene:
    """An analyzer, its rows and its findings."""

    def __init__(self, event_every: timedelta = EMIT_EVERY) -> None:
        self.event_every = event_every
        self.rows: dict[str, dict[str, object]] = {KNOWN.name: {}, MODELS.name: {}}
        self.emitted: list[BadNumber | StepsCertified] = []
        self.now = START
        self.restart()

    def restart(self) -> None:
        self.analyzer = Analyzer(engines_of(Settings()))
        self.analyzer.load(self.rows)

    def receive(self, *received: AnyEvent, commits: bool = True, waits: bool = True) -> Effect:
        """Handle the events; with `waits` as much time passes then as a fault waits for reports of other nodes."""
        effect = Effect()
        for event in received:
            self.now += self.event_every
            effect = self.analyzer.on_event(event, self.now)
            if commits:
                self._adopt(effect)
        if waits:
            effect = effect.together(self.wait(commits=commits))
        return effect

    def wait(self, *, commits: bool = True) -> Effect:
        self.now += COMPARED_WITHIN
        effect = self.analyzer.on_time(self.now, None)
        if commits:
            self._adopt(effect)
        return effect

    def _adopt(self, effect: Effect) -> None:
        self.analyzer.adopt(effect)
        for row in effect.rows:
            if row.row is None:
                del self.rows[row.table.name][row.key]
            else:
                self.rows[row.table.name][row.key] = row.row
        self.emitted += [emitted for emitted in effect.events if isinstance(emitted, BadNumber | StepsCertified)]

    @property
    def certified(self) -> tuple[int, int] | None:
        """Generation and step of the last certificate."""
        emitted = [(it.generation or 0, it.step) for it in self.emitted if isinstance(it, StepsCertified)]
        return emitted[-1] if emitted else None

    @property
    def faults(self) -> list[BadNumber]:
        return [it for it in self.emitted if isinstance(it, BadNumber)]


def in_turns(
    ranks: Ranks, steps: range, loss: Callable[[int], Number], norm: Callable[[int], Number]
) -> list[StepsMeasured]:
    return [
        ranks.measured(rank, range(at, min(at + 7, steps.stop)), loss, norm)
        for at in range(steps.start, steps.stop, 7)
        for rank in (0, 1)
    ]
