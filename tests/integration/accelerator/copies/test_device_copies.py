"""Steps kept from an accelerator are what the state was in the order of training, whatever the device's delays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator.copies import kept_chunks, kept_states, kept_steps
from tests.integration.accelerator.copies.kept_steps import (
    DIRECT_MIN,
    Mutant,
    kept,
    replace_everything,
    write_late,
)
from tests.integration.accelerator.trainings import Optimizing
from tests.integration.vault_process import UNTIL_TORN_DOWN, vault

pytestmark = on_accelerator

LONG = "HOLDFAST_LONG" in os.environ
SEEDS = range(1, 11 if LONG else 2)
STEPS = 6
TRIES = 3
"""A host that is held up for as long as a copy takes hides what comes too early."""

SHOWING = {
    # torch does not count what a fused optimizer writes: without the gate others would be taken for late writers.
    Mutant.NO_GATE: partial(kept, how="fused", late_copies=True, steps=STEPS),
    Mutant.NO_WAIT_FOR_TRAINING: partial(kept, behind=True, steps=STEPS),
    Mutant.SEALED_BEFORE_THE_EVENT: partial(kept, steps=STEPS),
    Mutant.FREED_EARLY: partial(kept, disturb=replace_everything, steps=STEPS),
    Mutant.NO_WAIT_AT_ONCE: partial(kept, is_full=True, steps=STEPS),
    Mutant.NO_SHADOW: partial(kept, steps=STEPS),
}
"""Trainings that show a mutant."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with vault(tmp_path, *UNTIL_TORN_DOWN) as it:
        yield it


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["single", "foreach", "fused"])
def test_each_step_comes_back_as_it_was(
    accelerators: Accelerators, directory: Path, how: Optimizing, seed: int
) -> None:
    steps = 100 if LONG else STEPS
    result = accelerators.call(kept, directory, how, steps=steps, seed=seed, checks=64)
    assert result.sealed == result.direct == list(range(1, steps + 1)) and not result.torn and not result.skipped
    assert result.laid == [1]


def test_copies_go_by_the_ring_until_the_vault_has_settled_its_memory(
    accelerators: Accelerators, directory: Path
) -> None:
    result = accelerators.call(kept, directory, steps=300, pinned="later")
    assert len(result.direct) == DIRECT_MIN and 1 not in result.direct
    assert result.sealed == list(range(1, result.direct[-1] + 1)) and not result.torn


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mutant", [it for it in Mutant if it in SHOWING], ids=lambda mutant: mutant.name.lower())
def test_a_wait_that_is_left_out_tears_steps_which_are_whole_with_it(
    accelerators: Accelerators, directory: Path, mutant: Mutant, seed: int
) -> None:
    whole = accelerators.call(SHOWING[mutant], directory, seed=seed)
    assert not whole.torn and len(whole.sealed) == STEPS
    torn = accelerators.call(SHOWING[mutant], directory, seed=seed, mutant=mutant)
    assert torn.torn, torn


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_ring", [False, True], ids=["direct", "ring"])
def test_bytes_that_come_are_reported_or_are_let_go_in_a_wrong_order_tear_steps(
    accelerators: Accelerators, directory: Path, is_ring: bool, seed: int
) -> None:
    """The vault hashes chunks behind the copies, so such a mutant breaks a seal, if it does not tear the step."""
    assert accelerators.call(kept_chunks.kept, directory, is_ring=is_ring, seed=seed) == []
    for mutant in kept_chunks.Mutant:
        if (mutant in kept_chunks.OF_RING) == is_ring:
            assert any(
                accelerators.call(kept_chunks.kept, directory, mutant, is_ring=is_ring, seed=seed) for _ in range(TRIES)
            ), mutant


# Without a wait for training the shadows are found wrong, too: from then on nothing is copied in this way any more.
@pytest.mark.parametrize(("mutant", "steps"), [(Mutant.NO_WAIT_FOR_TRAINING, 2), (Mutant.NO_SHADOW, 6)])
def test_no_step_that_is_checked_is_sealed_torn(
    accelerators: Accelerators, directory: Path, mutant: Mutant, steps: int
) -> None:
    behind = mutant is Mutant.NO_WAIT_FOR_TRAINING
    result = accelerators.call(kept, directory, mutant=mutant, checks=1, behind=behind, steps=steps)
    assert not result.torn and len(result.sealed) < steps


def test_without_pinning_every_step_goes_by_the_ring_and_is_whole(accelerators: Accelerators, directory: Path) -> None:
    result = accelerators.call(kept, directory, steps=6, pinned="never")
    assert (result.torn, len(result.sealed), result.direct) == ([], 6, [])


def test_by_the_ring_too_the_optimizer_waits_for_the_last_copy(accelerators: Accelerators, directory: Path) -> None:
    slow = partial(kept, how="fused", pinned="never", link=1e6, steps=4)
    whole = accelerators.call(slow, directory)
    assert not whole.torn and whole.sealed == [1, 2, 3, 4]
    assert accelerators.call(slow, directory, mutant=Mutant.NO_GATE).torn


def test_with_a_shadow_of_everything_late_writers_do_not_matter(accelerators: Accelerators, directory: Path) -> None:
    result = accelerators.call(kept, directory, steps=6, shadows_all=True, disturb=write_late)
    assert (result.torn, len(result.sealed)) == ([], 6)


def test_a_late_writer_is_found_and_costs_a_step(accelerators: Accelerators, directory: Path) -> None:
    unseen = accelerators.call(kept, directory, steps=6, disturb=write_late)
    assert unseen.torn
    result = accelerators.call(kept, directory, steps=6, checks=64, disturb=write_late)
    assert not result.torn and 4 <= len(result.sealed) < 6


@pytest.mark.parametrize("write", [kept_steps.write_late_once, kept_steps.exchange_memory], ids=["values", "memory"])
def test_a_writer_that_torch_does_not_count_is_found_in_a_step_without_a_check(
    accelerators: Accelerators, directory: Path, write: Callable[[kept_steps.Job, int], None]
) -> None:
    at, steps = kept_steps.BETWEEN_CHECKS, kept_steps.BETWEEN_CHECKS + 1
    late = partial(kept, directory, "fused", late_copies=True, steps=steps, checks=64, disturb=write)
    result = accelerators.call(late)
    assert not result.torn and result.sealed == [it for it in range(1, steps + 1) if it != at]
    assert result.laid[-1] == at + 1, "from then on everything has a shadow"
    assert accelerators.call(late, mutant=Mutant.NO_SAMPLES).torn == [at]


def test_an_average_that_is_brought_in_for_an_evaluation_tears_no_step(
    accelerators: Accelerators, directory: Path
) -> None:
    steps, write = kept_steps.BETWEEN_CHECKS, kept_steps.evaluate_average
    # The last step: copies that come late take the average.
    brought_in = partial(kept, directory, "fused", link=2e6, steps=steps, checks=64, disturb=write)
    result = accelerators.call(brought_in)
    assert not result.torn and result.sealed == list(range(1, steps))
    assert accelerators.call(brought_in, mutant=Mutant.NO_SAMPLES).torn == [steps]


def test_weights_that_are_loaded_during_copies_cost_that_step(accelerators: Accelerators, directory: Path) -> None:
    once = accelerators.call(kept, directory, steps=6, disturb=kept_steps.load_once)
    assert not once.torn and once.sealed == [1, 2, 4, 5, 6] and once.laid == [1]


def test_weights_that_are_loaded_in_each_step_are_copied_aside(accelerators: Accelerators, directory: Path) -> None:
    often = accelerators.call(kept, directory, steps=6, disturb=kept_steps.load_often)
    # `keep` waits for the first step, so what is loaded then comes behind its copies.
    assert not often.torn and often.sealed == [1, 4, 5, 6] and often.laid == [1, 4]


def test_weights_that_are_loaded_in_every_second_step_are_copied_aside(
    accelerators: Accelerators, directory: Path
) -> None:
    result = accelerators.call(kept, directory, steps=7, disturb=kept_steps.load_every_second)
    assert not result.torn and result.sealed == [1, 3, 5, 6, 7] and result.laid == [1, 5]


def test_a_parameter_that_leaves_its_optimizer_is_not_gated_any_more(
    accelerators: Accelerators, directory: Path
) -> None:
    result = accelerators.call(kept, directory, steps=6, disturb=kept_steps.leave_optimizer)
    assert not result.torn and len(result.sealed) == 6 and result.laid == [1, 4]


def test_a_step_whose_memory_is_taken_away_is_not_sealed(accelerators: Accelerators, directory: Path) -> None:
    result = accelerators.call(kept, directory, steps=5, disturb=kept_steps.take_memory_away)
    assert not result.torn and result.sealed == [1, 2, 4, 5]


def test_what_a_device_writes_to_pinned_memory_of_the_host_does_not_tear_a_step(
    accelerators: Accelerators, directory: Path
) -> None:
    assert accelerators.call(kept_states.kept_beside_writes_of_device, directory) == [1.0]


def test_a_state_without_elements_is_kept(accelerators: Accelerators, directory: Path) -> None:
    assert accelerators.call(kept_states.kept_without_elements, directory) == (1, True)


def test_dtypes_that_torch_itself_does_not_copy_are_kept_too(accelerators: Accelerators, directory: Path) -> None:
    kept_of = accelerators.call(kept_states.kept_of_odd_dtypes, directory)
    assert all(kept_of.values()), kept_of


def test_a_rank_that_is_alone_skips_steps_and_one_of_several_waits(accelerators: Accelerators, directory: Path) -> None:
    skipped, waited, kept_last, sealed = accelerators.call(kept_states.busy, directory, 1)
    assert (skipped, waited) == (2, 0) and kept_last == sealed == 2
    skipped, waited, kept_last, sealed = accelerators.call(kept_states.busy, directory, 2)
    assert (skipped, waited) == (0, 2) and kept_last == sealed == 4


def test_a_step_that_is_kept_in_inference_mode_changes_nothing_for_the_next(
    accelerators: Accelerators, directory: Path
) -> None:
    assert accelerators.call(kept_states.kept_in_inference_mode, directory) == (2, True)


def test_a_state_comes_back_to_the_device_that_it_lay_on(accelerators: Accelerators, directory: Path) -> None:
    assert accelerators.call(kept_states.brought_back, directory) == []
