"""Training on the simulated accelerator gives the CPU's losses, whatever its streams are delayed by."""

from __future__ import annotations

import os

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator import trainings

pytestmark = on_accelerator

STEPS = 4
SEEDS = range(10 if "HOLDFAST_LONG" in os.environ else 1)


@pytest.mark.parametrize("how", ["single", "foreach", "fused"])
def test_a_gpt_has_the_cpus_losses_and_its_host_never_waits(
    accelerators: Accelerators, how: trainings.Optimizing
) -> None:
    expected, _ = accelerators.call(trainings.alone, "cpu", how, STEPS)
    assert expected[-1] < expected[0]
    assert accelerators.call(trainings.alone, "sim", how, STEPS) == (expected, set())
    for seed in SEEDS:
        assert accelerators.call(trainings.alone, "sim", how, STEPS, seed) == (expected, set())


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_have_the_cpus_losses(accelerators: Accelerators, kind: str) -> None:
    expected = accelerators.ranks(2, "gloo", trainings.of_rank, "cpu", kind, STEPS)
    assert expected[0] != expected[1]
    for seed in SEEDS:
        assert accelerators.ranks(2, "cpu:gloo,sim:simccl", trainings.of_rank, "sim", kind, STEPS, seed) == expected


def test_what_else_a_training_uses_is_as_without_delays(accelerators: Accelerators) -> None:
    expected = accelerators.call(trainings.capturable)
    assert expected[-1] < expected[0]
    for seed in SEEDS:
        assert accelerators.call(trainings.capturable, seed) == expected
        assert accelerators.call(trainings.across_streams, seed)
        assert all(accelerators.call(trainings.hashed, seed))
    assert all(accelerators.call(trainings.compiled, SEEDS[0]))
