"""The distance of kept steps, by what keeping costs: when ranks ask for another one, and what comes of their votes."""

from __future__ import annotations

import pytest

from holdfast.trainer.checkpoint.pace.spacing import (
    EVERY_MAX,
    PATIENCE_MAX,
    PATIENCE_MIN,
    WINDOW,
    Costs,
    Limit,
    Samples,
    Spacing,
    Vote,
    ballot,
    is_kept,
    outcome,
    vote,
)

LIMIT = Limit(share=0.02, keep_s=0.002)


@pytest.mark.parametrize(
    ("keep_s", "every", "expected"),
    [
        (0.019, 1, Vote.CLOSER),
        (0.021, 1, Vote.WIDER),
        (0.039, 2, Vote.SAME),  # every step would cost 3.9 %
        (0.041, 2, Vote.WIDER),
        (0.011, 2, Vote.SAME),  # every step would cost 1.1 %: so near to the limit it would soon be too much again
        (0.009, 2, Vote.CLOSER),
        (0.0, 2, Vote.CLOSER),
        (10.0, EVERY_MAX, Vote.WIDER),
    ],
)
def test_a_rank_votes_by_the_share_of_a_second_that_keeping_costs(keep_s: float, every: int, expected: Vote) -> None:
    assert vote(Costs(keep_s, 1.0), every, LIMIT, is_patient=False) is expected


def test_what_cannot_be_told_from_noise_is_never_too_much() -> None:
    assert vote(Costs(0.0019, 0.001), 1, LIMIT, is_patient=False) is Vote.CLOSER
    assert vote(Costs(0.0021, 0.001), 1, LIMIT, is_patient=False) is Vote.WIDER


def test_a_closer_spacing_is_tried_when_it_is_time_and_something_is_known() -> None:
    assert vote(Costs(0.0, 1.0), 4, LIMIT, is_patient=True) is Vote.SAME
    assert vote(None, 4, LIMIT, is_patient=False) is Vote.SAME
    assert vote(None, 1, LIMIT, is_patient=False) is Vote.CLOSER


def test_one_rank_that_asks_for_it_is_enough_for_a_wider_spacing_and_all_are_needed_for_a_closer_one() -> None:
    def of(*votes: Vote, every: int = 4, ranks: int = 3) -> int:
        return outcome(sum(map(ballot, votes)), ranks, every)

    assert of(Vote.CLOSER, Vote.SAME, Vote.WIDER) == 8
    assert of(Vote.CLOSER, Vote.SAME, Vote.CLOSER) == 4
    assert of(Vote.CLOSER, Vote.CLOSER, Vote.CLOSER) == 2
    assert of(Vote.CLOSER, Vote.CLOSER, Vote.CLOSER, every=1) == 1
    assert of(Vote.WIDER, Vote.WIDER, Vote.WIDER, every=EVERY_MAX) == EVERY_MAX


def test_nothing_changes_without_the_vote_of_each_rank() -> None:
    for voted in ((Vote.WIDER, Vote.WIDER), (Vote.CLOSER, Vote.CLOSER), ()):
        assert outcome(sum(map(ballot, voted)), 3, 4) == 4


def test_kept_is_the_first_step_of_each_block_that_the_script_has() -> None:
    def kept(steps: range, every: int) -> list[int]:
        return [step for step in steps if is_kept(step, step - steps.step if step > steps.start else None, every)]

    assert kept(range(5, 14), 1) == list(range(5, 14))
    assert kept(range(5, 14), 4) == [5, 8, 12]
    assert kept(range(10, 101, 10), 4) == list(range(10, 101, 10))  # a script that keeps one step in ten
    assert kept(range(10, 101, 10), 32) == [10, 40, 70, 100]
    assert is_kept(7, 7, 1)


def test_the_first_step_of_a_window_is_kept_with_any_distance() -> None:
    every = 1
    while every <= EVERY_MAX:
        assert is_kept(3 * WINDOW, 3 * WINDOW - 1, every)
        every *= 2


def test_an_attempt_that_is_taken_back_doubles_the_time_until_the_next() -> None:
    """A device whose steps are sealed just in time with every second one: closer is free until it is tried."""
    spacing = Spacing()
    assert spacing.follow(2)
    waited = []
    for _ in range(8):
        windows = 0
        while spacing.is_patient:
            assert not spacing.follow(2)
            windows += 1
        waited.append(windows)
        assert spacing.follow(1) and not spacing.follow(1) and spacing.follow(2)
    assert waited == [PATIENCE_MIN, 16, 32, 64, *[PATIENCE_MAX] * 4]
    # One that lasts was none in vain.
    while spacing.is_patient:
        spacing.follow(2)
    spacing.follow(1)
    for _ in range(PATIENCE_MIN):
        spacing.follow(1)
    spacing.follow(2)
    windows = 0
    while spacing.is_patient:
        spacing.follow(2)
        windows += 1
    assert windows == PATIENCE_MIN


def test_a_rank_says_nothing_by_a_few_steps_and_a_single_one_decides_nothing() -> None:
    samples = Samples()
    for _ in range(3):
        samples.add(0.5, 1.0)
    samples.add(None, 1.0)
    assert samples.costs() is None
    samples.add(90.0, 40.0)
    assert samples.costs() == Costs(0.5, 1.0)
    samples.start_over()
    assert samples.costs() is None
