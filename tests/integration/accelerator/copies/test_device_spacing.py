"""Where copies hold up a device, all ranks keep the same one step in so many, and training waits less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.trainer.checkpoint.pace.spacing import WINDOW
from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator.copies.spaced_jobs import COMPUTE_S, NBYTES, TENSORS, Trained, train
from tests.integration.vault_process import UNTIL_TORN_DOWN, vault

pytestmark = on_accelerator

SLOW, FAST = TENSORS * NBYTES / 0.06, 0.0
"""Copies of a step take 60 ms; no time but that of the processors."""
STEPS = 5 * WINDOW + 8


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with vault(tmp_path, *UNTIL_TORN_DOWN):
        yield tmp_path


def is_spaced(trained: Trained) -> bool:
    """Return True if what was kept last is one step in `every`, and that is at least one in four."""
    last = [step for step in trained.kept if step >= 5 * WINDOW]
    return trained.every >= 4 and last == list(range(5 * WINDOW, STEPS + 1, trained.every))


def test_a_rank_that_is_alone_keeps_so_many_that_it_hardly_waits(accelerators: Accelerators, directory: Path) -> None:
    trained = accelerators.call(train, directory, 1, STEPS, (SLOW,))
    assert is_spaced(trained) and trained.step_s < COMPUTE_S + 0.03
    again = accelerators.call(train, directory, 2, trained.kept[-1] + 2, (SLOW,))
    # Alone it skips a step that comes while the one before is being sealed.
    assert again.start == trained.kept[-1] and again.kept[0] == again.start + 1


def test_all_ranks_follow_the_one_whose_link_is_slow(accelerators: Accelerators, directory: Path) -> None:
    backend = "cpu:gloo,sim:simccl"
    one, other = accelerators.ranks(2, backend, train, directory, 1, STEPS, (FAST, SLOW))
    assert one.kept == other.kept and one.every == other.every
    assert is_spaced(one)
    again = accelerators.ranks(2, backend, train, directory, 2, one.kept[-1] + 1, (FAST, SLOW))
    assert [it.start for it in again] == [one.kept[-1]] * 2


def test_where_nothing_waits_every_step_is_kept(accelerators: Accelerators, directory: Path) -> None:
    backend, steps = "cpu:gloo,sim:simccl", 3 * WINDOW
    # A longer step, for the noise of a busy machine is no cost of these copies.
    one, other = accelerators.ranks(2, backend, train, directory, 1, steps, (FAST, FAST), "0.5", 4 * COMPUTE_S)
    assert one.every == other.every == 1
    assert one.kept == other.kept == list(range(1, steps + 1))


def test_without_a_limit_every_step_is_kept_whatever_it_costs(accelerators: Accelerators, directory: Path) -> None:
    backend, steps = "cpu:gloo,sim:simccl", WINDOW + 8
    one, other = accelerators.ranks(2, backend, train, directory, 1, steps, (SLOW, SLOW), "0")
    assert one.every == other.every == 1
    assert one.kept == other.kept == list(range(1, steps + 1))
