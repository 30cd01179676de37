"""Certified steps and faults: on noisy losses, and with samples lost, late or repeated."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
import pytest

from holdfast.events import JobFinished, StepsCertified, StepsMeasured
from holdfast.ids import named_id
from holdfast.settings.findings.corruption import CorruptionPolicy
from holdfast_analyzer.engines.bad_numbers.bad_numbers import EMIT_EVERY, BadNumbers
from holdfast_analyzer.engines.bad_numbers.bad_numbers_engine import KNOWN
from tests.scenes.analyzer import START, Number, Ranks, Scene, in_turns, noisy, spiky

TRAINING = Path(__file__).with_name("gpt_training.json")
AFTER = CorruptionPolicy().certified_after_steps


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_training_with_noise_and_spikes_is_certified_and_without_fault(seed: int) -> None:
    rng, scene = random.Random(seed), Scene(EMIT_EVERY / 4)
    losses = [noisy(step, rng) for step in range(1, 1200)]
    norms = [spiky(step, rng) for step in range(1, 1200)]
    scene.receive(*in_turns(Ranks(), range(1, 1200), lambda step: losses[step - 1], lambda step: norms[step - 1]))
    assert not scene.faults
    assert scene.certified is not None and scene.certified[1] > 1000
    steps = [it.step for it in scene.emitted if isinstance(it, StepsCertified)]
    assert steps == sorted(set(steps))
    # What is emitted costs a transaction each: not one for every batch.
    assert len(steps) <= 1 + 2 * len(losses) / 7 / 4


@pytest.mark.parametrize("spoiled_by", ["nothing", "nan", "bit"])
def test_a_real_training(spoiled_by: str) -> None:
    """400 steps of examples/gpt with a small batch and a high learning rate: loss and gradient norm of each."""
    trace: list[tuple[float, float]] = json.loads(TRAINING.read_text())
    factor = {"nothing": 1.0, "nan": math.nan, "bit": 16.0}[spoiled_by]
    scene = Scene(EMIT_EVERY / 4)

    def loss(step: int) -> float:
        return trace[step - 1][0] * (factor if step >= 300 else 1.0)

    scene.receive(*in_turns(Ranks(), range(1, 401), loss, lambda step: trace[step - 1][1]))
    if spoiled_by == "nothing":
        assert not scene.faults
        assert scene.certified is not None and scene.certified[1] > 350
    else:
        (fault,) = scene.faults
        assert (fault.step, fault.kind) == (300, "nan" if spoiled_by == "nan" else "jump")
        # A loss that is none is not waited with until the other rank's samples have come.
        assert fault.certified is not None and 299 - AFTER - 7 < fault.certified <= 299 - AFTER
        assert scene.certified is not None and scene.certified[1] <= fault.certified


def test_a_step_is_certified_once_enough_clean_ones_have_followed() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, AFTER)))
    # What the job was given to start from; nothing else yet.
    assert scene.certified == (1, 0)
    scene.receive(*ranks.both(range(AFTER, AFTER + 6)), *ranks.both(range(AFTER + 6, AFTER + 9)))
    assert scene.certified == (1, 8)


def test_a_loss_that_is_not_finite_is_reported_at_once_with_the_last_clean_step() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(1, range(31, 36), lambda step: math.nan if step >= 33 else 1.0))
    (fault,) = scene.faults
    assert (fault.step, fault.rank, fault.quantity, fault.kind, fault.value) == (33, 1, "loss", "nan", None)
    assert (fault.level, fault.certified) == (1.0, 30 - AFTER)
    # The other rank's tells nothing new, and nothing is certified any more.
    scene.receive(ranks.measured(0, range(31, 60), lambda step: -math.inf if step >= 34 else 1.0))
    assert len(scene.faults) == 1
    assert scene.certified == (1, 30 - AFTER)


def test_an_earlier_fault_is_reported_again() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    scene.receive(ranks.measured(0, range(31, 40), lambda step: math.inf if step >= 34 else 1.0))
    scene.receive(ranks.measured(1, range(31, 40), lambda step: math.nan if step >= 33 else 1.0))
    assert [(fault.step, fault.kind, fault.rank) for fault in scene.faults] == [(34, "inf", 0), (33, "nan", 1)]


def test_a_loss_that_stays_five_times_above_its_level_is_a_fault_and_a_single_one_is_not() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 41)))
    healed = [ranks.measured(rank, range(41, 60), lambda step: 5.5 if step in (45, 46) else 1.0) for rank in (0, 1)]
    scene.receive(*healed)
    assert not scene.faults
    # Held back by the jump, and going on behind it.
    assert scene.certified == (1, 59 - AFTER)
    stays = [ranks.measured(rank, range(60, 70), lambda step: 5.5 if step >= 62 else 1.0) for rank in (0, 1)]
    scene.receive(*stays)
    (fault,) = scene.faults
    assert (fault.step, fault.kind, fault.value, fault.level) == (62, "jump", 5.5, 1.0)
    assert fault.certified == 61 - AFTER


def test_steps_that_the_bus_delivers_again_to_a_restarted_analyzer_are_not_compared_with_later_ones() -> None:
    scene, ranks = Scene(EMIT_EVERY / 4), Ranks()
    batches = in_turns(ranks, range(1, 61), lambda step: 1 / step, lambda _: 1.0)
    scene.receive(*batches)
    scene.restart()
    scene.receive(*batches, *in_turns(ranks, range(61, 80), lambda step: 1 / step, lambda _: 1.0))
    assert not scene.faults
    # Later ones are judged as before.
    scene.receive(*in_turns(ranks, range(80, 100), lambda step: 1.0, lambda _: 1.0))
    assert [fault.step for fault in scene.faults] == [80]


@pytest.mark.parametrize("analyzer_restarts", [False, True])
def test_repeated_steps_are_not_compared_with_later_ones(analyzer_restarts: bool) -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*in_turns(ranks, range(1, 120), lambda step: 1.0 / step, lambda step: None))
    if analyzer_restarts:
        scene.restart()
    # Without a checkpoint to go on from.
    for rank in (0, 1):
        scene.receive(ranks.measured(rank, range(1, 31), lambda step: 1.0 / step, generation=2))
    assert not scene.faults


def test_a_bad_gradient_norm_stops_certification_at_once_and_is_a_fault_when_it_lasts() -> None:
    scene, ranks = Scene(), Ranks()

    def scaled(step: int) -> float:
        return math.inf if step == 45 or step >= 70 else 1.0

    def both(steps: range) -> list[StepsMeasured]:
        return [ranks.measured(rank, steps, lambda step: 1.0, scaled) for rank in (0, 1)]

    scene.receive(*both(range(1, 50)))
    assert scene.certified == (1, 44 - AFTER)
    scene.receive(*both(range(50, 70)))
    assert not scene.faults and scene.certified == (1, 69 - AFTER)
    scene.receive(*both(range(70, 79)))
    assert not scene.faults
    scene.receive(*both(range(79, 82)))
    assert [(fault.step, fault.quantity, fault.kind) for fault in scene.faults] == [(70, "grad_norm", "inf")]


def test_a_missing_reading_certifies_nothing() -> None:
    scene, ranks = Scene(), Ranks()
    for rank in (0, 1):
        scene.receive(ranks.measured(rank, range(1, 100), lambda step: None))
    assert scene.certified == (1, 0)


def test_a_silent_rank_certifies_nothing() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(ranks.measured(0, range(1, 100)), ranks.measured(1, range(1, 5)))
    assert scene.certified == (1, 0)


def test_an_unknown_number_of_ranks_certifies_nothing() -> None:
    scene, ranks = Scene(), Ranks()
    for event in ranks.both(range(1, 100)):
        scene.receive(_changed(event, world_size=0))
    assert scene.certified == (1, 0)


def test_a_gap_resets_the_count_and_late_samples_certify_nothing() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    late = ranks.measured(0, range(31, 35))
    ranks.measured(1, range(31, 35))
    first, second = ranks.both(range(35, 35 + AFTER - 1))
    scene.receive(first, second, late)
    assert scene.certified == (1, 30 - AFTER)
    scene.receive(*ranks.both(range(35 + AFTER - 1, 35 + AFTER)))
    scene.receive(*ranks.both(range(35 + AFTER, 36 + AFTER)))
    assert scene.certified == (1, 35)


def test_missed_steps_are_a_gap() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    for event in ranks.both(range(35, 34 + AFTER)):
        scene.receive(_changed(event, missed=4))
    assert scene.certified == (1, 30 - AFTER)


def test_a_late_sample_can_show_a_fault() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    late = ranks.measured(0, range(31, 35), lambda step: math.nan)
    ranks.measured(1, range(31, 35))
    scene.receive(*ranks.both(range(35, 60)), late)
    (fault,) = scene.faults
    assert fault.step == 31 and fault.certified is not None and fault.certified < 31


def test_a_repeated_batch_counts_once() -> None:
    scene, ranks = Scene(), Ranks()
    first, second = ranks.both(range(1, AFTER))
    scene.receive(first, first, second, second, first)
    more, rest = ranks.both([AFTER])
    scene.receive(more, more)
    assert scene.certified == (1, 0)
    scene.receive(rest)
    scene.receive(*ranks.both([AFTER + 1]))
    assert scene.certified == (1, 1)


def test_a_generation_that_went_back_lowers_the_certified_step() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)), *ranks.both(range(31, 61)))
    assert scene.certified == (1, 60 - AFTER)
    scene.receive(*ranks.both(range(21, 25), generation=2))
    assert scene.certified == (2, 20)
    # What comes late of the one before is of a past that was given up.
    scene.receive(*ranks.both(range(61, 200), generation=1))
    scene.receive(ranks.measured(0, range(200, 201), lambda step: math.nan, generation=1))
    assert scene.certified == (2, 20) and not scene.faults


def test_a_generation_that_went_on_keeps_the_certified_step() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 61)), *ranks.both(range(61, 64)))
    assert scene.certified == (1, 63 - AFTER)
    scene.receive(*ranks.both(range(60, 62), generation=2))
    emitted = scene.emitted[-1]
    assert isinstance(emitted, StepsCertified) and emitted.newest_step >= 59
    scene.receive(*ranks.both(range(62, 64), generation=2))
    assert scene.certified == (2, 63 - AFTER)


def test_a_restarted_analyzer_knows_the_certified_step_and_the_level() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)), *ranks.both(range(31, 61)))
    certified = scene.certified
    scene.restart()
    # Without the level these would be a training like any other.
    scene.receive(*[ranks.measured(rank, range(61, 90), lambda step: 50.0) for rank in (0, 1)])
    assert [(fault.step, fault.kind, fault.certified) for fault in scene.faults] == [(61, "jump", 60 - AFTER)]
    assert scene.certified == certified


def test_an_analyzer_that_missed_the_beginning_certifies_nothing_at_first() -> None:
    scene, ranks = Scene(), Ranks()
    ranks.both(range(1, 31))
    scene.receive(*ranks.both(range(31, 35)))
    assert scene.certified is None
    scene.receive(ranks.measured(0, range(35, 36), lambda step: math.nan))
    assert [fault.certified for fault in scene.faults] == [None]


@pytest.mark.parametrize("analyzer_restarts", [False, True])
@pytest.mark.parametrize("given", [0, 1000])
def test_the_start_of_the_first_generation_with_steps_is_certified(given: int, analyzer_restarts: bool) -> None:
    scene, ranks = Scene(), Ranks()
    # Generations 1 and 2 came to no step; 3 ended before one of its own was certified.
    scene.receive(*ranks.both(range(given + 1, given + 4), generation=3))
    assert scene.certified == (3, given)
    if analyzer_restarts:
        scene.restart()
    scene.receive(*ranks.both([given + 4], generation=4))
    scene.receive(ranks.measured(1, [given + 5], lambda step: math.nan, generation=4))
    assert [(fault.generation, fault.step, fault.certified) for fault in scene.faults] == [(4, given + 5, given)]


@pytest.mark.parametrize("analyzer_restarts", [False, True])
def test_a_generation_after_a_missed_beginning_is_no_beginning(analyzer_restarts: bool) -> None:
    scene, ranks = Scene(), Ranks()
    ranks.both(range(1, 31))
    # Nothing is found in these: nobody read a number.
    for rank in (0, 1):
        scene.receive(ranks.measured(rank, range(31, 34), lambda step: None))
    if analyzer_restarts:
        scene.restart()
    scene.receive(*ranks.both(range(34, 38), generation=2))
    scene.receive(ranks.measured(1, [38], lambda step: math.nan, generation=2))
    assert scene.certified is None
    assert [(fault.step, fault.certified) for fault in scene.faults] == [(38, None)]


def test_an_uncommitted_finding_is_repeated() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 31)))
    spoiled = ranks.measured(0, range(31, 35), lambda step: math.nan)
    before = scene.receive(spoiled, commits=False)
    again = scene.receive(spoiled)
    assert [it.id for it in before.events] == [it.id for it in again.events]
    assert len(scene.faults) == 1
    scene.receive(spoiled)
    assert len(scene.faults) == 1


def test_nan_of_a_rank_that_never_has_a_number_is_no_fault() -> None:
    scene, ranks = Scene(), Ranks()
    for at in range(1, 100, 20):
        scene.receive(ranks.measured(0, range(at, at + 20), lambda step: math.nan))
        scene.receive(ranks.measured(1, range(at, at + 20)))
    assert not scene.faults and scene.certified == (1, 100 - AFTER)
    # Nor to an analyzer that has not seen what was before.
    scene.restart()
    scene.receive(ranks.measured(0, range(101, 120), lambda step: math.nan), ranks.measured(1, range(101, 120)))
    assert not scene.faults and scene.certified == (1, 119 - AFTER)
    scene.receive(ranks.measured(1, range(120, 121), lambda step: math.nan))
    assert [(fault.step, fault.rank) for fault in scene.faults] == [(120, 1)]


@pytest.mark.parametrize("clean_steps", [2, 40])
def test_a_restarted_analyzer_knows_the_ranks_that_had_numbers(clean_steps: int) -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, clean_steps)), *ranks.both([clean_steps]))
    certified = max(0, clean_steps - AFTER)
    assert scene.certified == (1, certified)
    scene.restart()
    spoiled = range(clean_steps + 1, clean_steps + 41)
    scene.receive(ranks.measured(0, spoiled), ranks.measured(1, spoiled, lambda step: math.nan), *ranks.both([100]))
    found = [(fault.step, fault.rank, fault.kind, fault.certified) for fault in scene.faults]
    assert found == [(clean_steps + 1, 1, "nan", certified)]
    assert scene.certified == (1, certified)


def test_a_restarted_analyzer_knows_the_ranks_that_had_gradient_norms() -> None:
    scene, ranks = Scene(), Ranks()

    def both(steps: range, norm: Number) -> list[StepsMeasured]:
        sound = ranks.measured(0, steps, norm=lambda step: 1.0)
        return [sound, ranks.measured(1, steps, norm=lambda step: norm)]

    scene.receive(*both(range(1, 31), 1.0))
    scene.restart()
    scene.receive(*both(range(31, 61), math.inf))
    assert [(fault.step, fault.rank, fault.quantity) for fault in scene.faults] == [(31, 1, "grad_norm")]


def test_the_ranks_with_numbers_are_stored_once_and_not_for_every_node() -> None:
    scene, ranks = Scene(), Ranks()
    kept = [scene.receive(event).rows for at in range(1, 6) for event in ranks.both([at])]
    # The first is that of what the job was given to start from; the second has every rank.
    assert [bool(rows) for rows in kept] == [True, True] + 8 * [False]


@pytest.mark.parametrize("analyzer_restarts", [False, True])
def test_it_is_a_fault_if_no_rank_has_a_number_any_more(analyzer_restarts: bool) -> None:
    scene, ranks = Scene(), Ranks()

    def both(steps: range, *losses: Number) -> list[StepsMeasured]:
        return [ranks.measured(0, steps, lambda step: losses[0]), ranks.measured(1, steps, lambda step: losses[1])]

    scene.receive(*both(range(1, 31), 1.0, None), *both(range(31, 61), 1.0, None))
    if analyzer_restarts:
        scene.restart()
    scene.receive(*both(range(61, 70), None, math.nan))
    assert [(fault.step, fault.kind, fault.certified) for fault in scene.faults] == [(61, "nan", 60 - AFTER)]


def test_a_generation_that_begins_with_nan_is_faulty_from_its_first_step() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 61)))
    scene.receive(ranks.measured(1, range(61, 62), lambda step: math.nan, generation=2))
    assert [(fault.generation, fault.step, fault.certified) for fault in scene.faults] == [(2, 61, 60 - AFTER)]


def test_a_certificate_can_be_withdrawn() -> None:
    numbers, ranks = BadNumbers("job", CorruptionPolicy()), Ranks()
    for event in ranks.both(range(1, 61)):
        numbers.take(event)
    numbers.doubt(40)
    assert numbers.known().certified == 39
    for event in ranks.both(range(61, 60 + AFTER)):
        numbers.take(event)
    assert numbers.known().certified == 39


def test_a_job_that_is_over_leaves_nothing() -> None:
    scene, ranks = Scene(), Ranks()
    scene.receive(*ranks.both(range(1, 61)))
    assert scene.rows[KNOWN.name]
    over = JobFinished(
        id=named_id(START, "over"),
        at=START,
        source="controller",
        job="job",
        outcome="completed",
        exit_code=0,
        reason="",
    )
    scene.receive(over, *ranks.both(range(61, 99)))
    assert not scene.rows[KNOWN.name]


def _changed(event: StepsMeasured, **changes: int) -> StepsMeasured:
    return msgspec.structs.replace(event, **changes)
