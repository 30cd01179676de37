"""How often the agent looks at the ledgers: seldom, and often enough that none of their steps is overwritten unseen."""

from __future__ import annotations

import pytest

from holdfast.node.ledger.ledger_layout import RING_STEPS
from holdfast_agent.watching.watcher import POLL_MAX_S, POLL_MIN_S, next_pause_s


def play(step_s: float, seconds: float, pause_s: float = POLL_MIN_S) -> tuple[float, int]:
    """The pause after some time at a steady pace, and the most steps that lay between two looks."""
    at, done, most = 0.0, 0, 0
    while at < seconds:
        at += pause_s
        steps = int(at / step_s) - done
        done += steps
        most = max(most, steps)
        pause_s = next_pause_s(pause_s, steps)
    return pause_s, most


def test_slow_steps_are_looked_at_once_a_second() -> None:
    assert play(step_s=0.2, seconds=30)[0] == POLL_MAX_S


@pytest.mark.parametrize("step_s", [0.0005, 0.001, 0.002, 0.004, 0.01, 0.1])
def test_no_step_is_overwritten_from_the_first_one_on(step_s: float) -> None:
    assert play(step_s, seconds=60)[1] < RING_STEPS


def test_none_is_lost_when_a_rank_that_stood_still_goes_on() -> None:
    pause_s = POLL_MIN_S
    for _ in range(2):
        pause_s = next_pause_s(pause_s, 0)
    assert pause_s == 4 * POLL_MIN_S
    assert play(0.001, seconds=60, pause_s=pause_s)[1] < RING_STEPS
