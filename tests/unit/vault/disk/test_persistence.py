"""When a step goes to the disk: as people say it, in steps, and what a node makes of each step that is sealed."""

from __future__ import annotations

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.persist_every import PersistEvery
from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.checkpoint.storage.retention import Retention, outdated
from holdfast_vault.disk.persist_plan import (
    UNFINISHED_MAX,
    GatheredStep,
    PersistTurn,
    PublishPlan,
    plan_publishing,
    turn_of,
)

RANKS = range(4, 6)


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("500", PersistEvery(steps=500)),
        ("30s", PersistEvery(seconds=30)),
        ("10m", PersistEvery(seconds=600)),
        ("2h", PersistEvery(seconds=7200)),
        ("never", PersistEvery()),
    ],
)
def test_what_people_say(text: str, wanted: PersistEvery) -> None:
    assert PersistEvery.parse(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "10 m", "1.5m", "10d", "always"])
def test_what_is_no_distance_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(ValueError, match=r'steps \("500"\), a time \("10m"\), or "never"'):
        PersistEvery.parse(text)
    if text:
        with pytest.raises(ValueError, match="is no distance"):
            JobSpec(name="job", script="x", cwd="/", directory="/", persist_every=text)


def test_a_time_is_as_many_steps_as_fit_and_stays_so_until_it_is_clearly_wrong() -> None:
    ten_minutes = PersistEvery.parse("10m")
    assert ten_minutes.in_steps(None) == 0
    assert ten_minutes.in_steps(1.0) == 512
    assert ten_minutes.in_steps(5000.0) == 1
    assert [ten_minutes.in_steps(600 / steps, 512) for steps in (385, 512, 1024, 1270)] == [512] * 4
    assert [ten_minutes.in_steps(600 / steps, 512) for steps in (380, 1300)] == [256, 1024]
    assert ten_minutes.in_steps(None, 512) == 512
    assert (PersistEvery(steps=7).in_steps(1.0, 512), PersistEvery().in_steps(1.0, 512)) == (7, 0)


def test_a_step_is_written_once_all_ranks_of_the_node_have_it() -> None:
    gathered, what = turn_of(None, False, 4, at(10), RANKS, True)
    assert (gathered, what) == (GatheredStep(sealed=at(10), there=frozenset({4})), PersistTurn.WAITS)
    assert turn_of(gathered, False, 4, at(11), RANKS, False) == (gathered, PersistTurn.NOT_DUE)
    gathered, what = turn_of(gathered, False, 5, at(10), RANKS, True)
    assert what is PersistTurn.BEGINS
    # While it is written, the next is left out, and nothing of it is remembered.
    assert turn_of(gathered, True, 4, at(15), RANKS, True) == (gathered, PersistTurn.LEFT_OUT)
    gathered, what = turn_of(gathered, False, 5, at(15), RANKS, True)
    assert what is PersistTurn.WAITS
    assert turn_of(gathered, False, 5, at(20), RANKS, True)[1] is PersistTurn.WAITS


def test_a_step_that_some_rank_never_seals_is_given_up_for_the_next() -> None:
    gathered, _ = turn_of(None, False, 4, at(10), RANKS, True)
    gathered, what = turn_of(gathered, False, 4, at(15), RANKS, True)
    assert (gathered, what) == (GatheredStep(sealed=at(15), there=frozenset({4})), PersistTurn.WAITS)
    assert turn_of(gathered, False, 5, at(10), RANKS, True) == (gathered, PersistTurn.NOT_DUE)
    assert turn_of(gathered, False, 5, at(15), RANKS, True)[1] is PersistTurn.BEGINS


def test_a_later_generation_s_step_is_newer_be_its_number_lower() -> None:
    gathered, _ = turn_of(None, False, 4, at(20), RANKS, True)
    gathered, what = turn_of(gathered, False, 4, at(10, 2), RANKS, True)
    assert (gathered, what) == (GatheredStep(sealed=at(10, 2), there=frozenset({4})), PersistTurn.WAITS)
    assert turn_of(gathered, False, 5, at(25), RANKS, True)[1] is PersistTurn.NOT_DUE


def test_nothing_is_due_where_nothing_was_asked_for() -> None:
    assert turn_of(None, False, 4, at(10), RANKS, False) == (None, PersistTurn.NOT_DUE)


@pytest.mark.parametrize(
    ("missing", "wanted"),
    [
        ({}, PublishPlan(publish=None, drop=(), waiting=())),
        ({10: 0}, PublishPlan(publish=10, drop=(), waiting=())),
        ({10: 0, 15: 2, 20: 0, 25: 1}, PublishPlan(publish=20, drop=(10, 15), waiting=(25,))),
        ({10: 2, 15: 2}, PublishPlan(publish=None, drop=(), waiting=(15, 10))),
    ],
)
def test_the_newest_whole_step_is_published_and_what_is_older_goes(
    missing: dict[int, int], wanted: PublishPlan
) -> None:
    assert plan_publishing(missing) == wanted


def test_what_too_many_steps_have_overtaken_goes() -> None:
    steps = dict.fromkeys(range(UNFINISHED_MAX + 2), 1)
    assert plan_publishing(steps) == PublishPlan(
        publish=None, drop=(0, 1), waiting=tuple(range(UNFINISHED_MAX + 1, 1, -1))
    )


@pytest.mark.parametrize(
    ("retention", "dropped"),
    [
        (Retention(9), []),
        (Retention(2), [1, 2, 3]),
        (Retention(1, certified_up_to=2), [1, 3, 4]),
        (Retention(1, certified_up_to=0), [1, 2, 3, 4]),
        (Retention(1, certified_up_to=9), [1, 2, 3, 4]),
        (Retention(9, nbytes_max=25), [1, 2, 3]),
        (Retention(9, nbytes_max=1), [1, 2, 3, 4]),
        (Retention(9, nbytes_max=35, certified_up_to=1), [2, 3]),
    ],
)
def test_the_newest_is_kept_whatever_it_takes_and_the_newest_certified(
    retention: Retention, dropped: list[int]
) -> None:
    assert outdated(dict.fromkeys(range(1, 6), 10), retention) == dropped
