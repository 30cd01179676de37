"""A path of snapshots is whole on the simulated accelerator, and torn as soon as it leaves out one of its waits."""

from __future__ import annotations

import os

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator import snapshots, trainings
from tests.integration.accelerator.snapshots import Mutant, Schedule

pytestmark = on_accelerator

LONG = "HOLDFAST_LONG" in os.environ
SEEDS = range(1, 11 if LONG else 3)
MUTANTS = [mutant for mutant in Mutant if mutant is not Mutant.WHOLE]


@pytest.mark.parametrize("schedule", Schedule, ids=lambda schedule: schedule.name.lower())
@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_with_every_wait_is_never_torn(accelerators: Accelerators, seed: int, schedule: Schedule) -> None:
    steps = 100 if LONG else snapshots.STEPS
    assert accelerators.call(snapshots.torn, Mutant.WHOLE, seed, steps, schedule=schedule) == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.lower())
def test_a_path_that_leaves_out_a_wait_is_torn_with_each_seed(
    accelerators: Accelerators, mutant: Mutant, seed: int
) -> None:
    assert accelerators.call(snapshots.torn, mutant, seed)


def test_what_only_waits_too_little_is_whole_where_each_task_is_awaited(accelerators: Accelerators) -> None:
    """Otherwise something else than the missing wait tears it."""
    for mutant in MUTANTS:
        assert accelerators.call(snapshots.torn, mutant, 1, steps=3, synchronous=True) == 0, mutant


def test_a_collective_whose_future_completes_early_changes_ddps_losses_with_each_seed(
    accelerators: Accelerators,
) -> None:
    backend = "cpu:gloo,sim:simccl"
    expected = accelerators.ranks(2, "gloo", trainings.of_rank, "cpu", "ddp", 3)
    for seed in SEEDS if LONG else SEEDS[:1]:
        assert accelerators.ranks(2, backend, trainings.of_rank, "sim", "ddp", 3, seed) == expected
        assert accelerators.ranks(2, backend, trainings.of_rank_with_early_futures, 3, seed) != expected
