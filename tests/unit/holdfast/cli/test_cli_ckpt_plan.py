"""Shares in percent: a share below one is never shown as 100 %."""

from __future__ import annotations

import pytest

from holdfast.cli.checkpoints.ckpt_plan import JobPlan, Kept, plan_text
from holdfast.cli.checkpoints.odds import share_text


@pytest.mark.parametrize(
    ("survived", "losses", "text"),
    [
        (4, 4, "100 %"),
        (0, 4, "0.0 %"),
        (1984, 2016, "98.4 %"),
        (779999, 780000, "99.99987 %"),
        (323882898560, 323882960960, "99.999981 %"),
    ],
)
def test_a_share_has_the_digits_that_distinguish_it_from_all(survived: int, losses: int, text: str) -> None:
    assert share_text(survived, losses) == text


@pytest.mark.parametrize(
    ("copied", "kept", "expected"),
    [
        (1, 1, None),
        (4, 1, None),
        (1, 8, "it costs too much. A restart trains up to 16 steps again."),
        (4, 8, "it costs too much. A restart trains up to 16 steps again."),
        (16, 8, "it costs too much. A restart trains up to 16 steps again, after the loss of a node up to 32."),
    ],
)
def test_a_plan_tells_how_many_steps_a_restart_may_repeat(copied: int, kept: int, expected: str | None) -> None:
    plan = JobPlan(
        job="gpt",
        generation=1,
        strategy="ring",
        protects="one node",
        every=copied,
        reason="r",
        nodes=(),
        plans=(),
        kept=Kept(every=kept, reason="it costs too much"),
    )
    assert ([line for line in plan_text(plan).splitlines() if "again" in line] or [None]) == [expected]
