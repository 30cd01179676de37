"""The numbers in the line that `holdfast run` keeps on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.cli.follow.live_numbers import LiveNumbers
from holdfast.events import FirstStep, GenerationStarted, IncidentOpened, Progress, StepsMeasured
from holdfast.events.parts.ranks import RankProgress
from holdfast.events.parts.samples import StepSample
from holdfast.fresh_ids import uuid7

START = datetime(2026, 1, 1, tzinfo=UTC)


class Seen:
    def __init__(self) -> None:
        self.numbers = LiveNumbers()

    def take(self, kind: type[Any], at_s: float, **fields: Any) -> None:
        at = START + timedelta(seconds=at_s)
        if kind is FirstStep:
            fields["completed_at"] = at
        if kind is GenerationStarted:
            fields |= {"nodes": ("n",), "world_size": 1}
        self.numbers.take(kind(id=uuid7(), at=at, source="test", node="n", job="job", **fields))

    def progress(self, at_s: float, step: int) -> None:
        self.take(Progress, at_s, ranks=(RankProgress(rank=0, step=step, phase="step"),))

    def text(self, at_s: float) -> str:
        return self.numbers.text(START + timedelta(seconds=at_s))


def test_what_is_not_known_is_left_out() -> None:
    seen = Seen()
    assert seen.text(0) == ""
    seen.take(GenerationStarted, 0, reason="start")
    assert seen.text(30) == ""


def test_step_pace_loss_incidents_pool_and_the_share_of_training() -> None:
    seen = Seen()
    seen.take(GenerationStarted, 0, reason="start")
    seen.take(FirstStep, 10, step=1)
    for second in range(11, 31):
        seen.progress(second, 1 + 2 * (second - 10))
    sample = StepSample(rank=0, step=41, ended_at=START, duration_s=0.5, loss=2.5)
    seen.take(StepsMeasured, 30, samples=(sample,))
    assert seen.text(30) == " · step 41 · 0.5 s/step · loss 2.5000"
    seen.numbers.free_nodes = 2
    seen.take(IncidentOpened, 70, incident="i", symptom="user_exception", failed_step=41, reason="it broke")
    seen.take(GenerationStarted, 70, reason="again")
    # 60 s of 100 s; the steps begin again, and have no pace yet.
    assert seen.text(100) == " · step 41 · loss 2.5000 · ETTR 60.0 % · 1 incident · 2 spare"
    seen.take(FirstStep, 100, step=1)
    assert seen.text(100).startswith(" · step 1 · loss")


def test_reports_of_several_nodes_do_not_make_the_step_jump() -> None:
    seen = Seen()
    seen.take(FirstStep, 0, step=1)
    for second in range(1, 5):
        seen.progress(second, 10 * second)
        seen.progress(second + 0.1, 10 * second - 1)
    assert seen.text(5) == " · step 40 · 0.103 s/step"
