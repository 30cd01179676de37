"""Findings of the analyzer, trace by trace (tests/golden/analyzer/*.trace).

> 10 steps rank=0 from=1 to=10 loss=1.0       # what the library was told; no loss: nothing
> 12 logged rank=0 at=5,10 loss=1.0,nan       # what a TensorBoard log has, by the ledger's steps
> 13 restart                                  # the analyzer, with what it had stored
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import AnyEvent, BadNumber, MfuDeclined, NumbersLogged, StepsCertified, StepsMeasured
from holdfast.events.parts.samples import LoggedSample, StepSample
from holdfast.settings.load import Settings
from holdfast_analyzer.engines.bad_numbers.bad_numbers_engine import KNOWN
from holdfast_analyzer.engines.telemetry.telemetry_engine import MODELS
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from tests.golden.trace import Input, play

TRACES = sorted((Path(__file__).parent / "analyzer").glob("*.trace"))
RANKS = 2


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    scene = _Scene()
    play(path, scene.step, request.config.getoption("--rewrite"))


class _Scene:
    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.analyzer = Analyzer(engines_of(Settings()))
        self.said: dict[tuple[str, str, int], int] = {}

    def step(self, given: Input) -> list[str]:
        if given.kind == "restart":
            self.analyzer = Analyzer(engines_of(Settings()))
            self.analyzer.load({KNOWN.name: self.rows, MODELS.name: {}})
            return []
        event = self._steps(given) if given.kind == "steps" else self._logged(given)
        effect = self.analyzer.on_event(event, given.at)
        self.analyzer.adopt(effect)
        for row in effect.rows:
            self.rows[row.key] = row.row
        return [line for event in effect.events if (line := _told(event))]

    def _common(self, given: Input, samples: tuple[Any, ...]) -> dict[str, Any]:
        generation = int(given.fields.get("generation", "1"))
        key = (given.kind, given.fields["rank"], generation)
        before = self.said.get(key, 0)
        self.said[key] = before + len(samples)
        return {
            "id": given.id,
            "at": given.at,
            "source": "trace",
            "node": f"node-{given.fields['rank']}",
            "job": "job",
            "generation": generation,
            "samples": samples,
            "before": before,
        }

    def _steps(self, given: Input) -> StepsMeasured:
        rank, loss = int(given.fields["rank"]), given.fields.get("loss")
        samples = tuple(
            StepSample(rank=rank, step=step, ended_at=given.at, duration_s=1.0, **_number("loss", loss))
            for step in range(int(given.fields["from"]), int(given.fields["to"]) + 1)
        )
        return StepsMeasured(**self._common(given, samples), world_size=RANKS)

    def _logged(self, given: Input) -> NumbersLogged:
        steps = [int(step) for step in given.fields["at"].split(",")]
        quantity = "grad_norm" if "grad_norm" in given.fields else "loss"
        numbers = given.fields[quantity].split(",")
        samples = tuple(
            LoggedSample(
                rank=int(given.fields["rank"]),
                step=step,
                logged_step=step + 1,
                logged_at=given.at,
                **_number(quantity, number),
            )
            for step, number in zip(steps, numbers * (len(steps) // len(numbers)), strict=True)
        )
        tags = {quantity: f"train/{quantity}"}
        return NumbersLogged(**self._common(given, samples), kind="tensorboard", path="/events", tags=tags)


def _number(name: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    return {name: float(text)} if math.isfinite(float(text)) else {"not_finite": {name: text}}


def _told(event: AnyEvent) -> str:
    match event:
        case StepsCertified():
            return f"< steps_certified {event.step}"
        case BadNumber():
            value = event.kind if event.value is None else f"{event.kind} to {event.value:g}"
            told = f", told by {event.told_by} ({event.tag} at {event.logged_step})" if event.told_by else ""
            return f"< bad_number {event.quantity} {value} at {event.step}, certified {event.certified}{told}"
        case MfuDeclined():
            return f"< mfu_declined {event.share_left:.2f} since {event.since_step}"
        case _:
            return ""
