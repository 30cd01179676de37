"""Jobs on an accelerator go on from the newest step that they kept, as if they had never ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator.copies import kept_jobs
from tests.integration.accelerator.copies.kept_jobs import Kind, Trained
from tests.integration.vault_process import UNTIL_TORN_DOWN, vault

pytestmark = on_accelerator

STEPS, KEPT = 6, 3


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with vault(one, *UNTIL_TORN_DOWN), vault(other, *UNTIL_TORN_DOWN):
        yield one, other


def run(
    accelerators: Accelerators, kind: Kind, directory: Path, generation: int, until: int, seed: int, size: int = 2
) -> list[Trained]:
    if kind == "alone":
        return [accelerators.call(kept_jobs.train, directory, generation, kind, until, seed)]
    backend = "cpu:gloo,sim:simccl"
    return accelerators.ranks(size, backend, kept_jobs.train, directory, generation, kind, until, seed)


@pytest.mark.parametrize("kind", ["alone", "ddp", "fsdp2"])
def test_a_job_goes_on_as_if_it_had_never_ended(
    accelerators: Accelerators, directories: tuple[Path, Path], kind: Kind
) -> None:
    one, other = directories
    whole = run(accelerators, kind, one, 1, STEPS, seed=1)
    run(accelerators, kind, other, 1, KEPT, seed=2)
    second = run(accelerators, kind, other, 2, STEPS, seed=3)
    for expected, it in zip(whole, second, strict=True):
        assert it.start == KEPT and it.losses == expected.losses[KEPT:]
        assert expected.gated


def test_ranks_in_another_number_have_the_state_of_those_before(
    accelerators: Accelerators, directories: tuple[Path, Path]
) -> None:
    one, _ = directories
    two = run(accelerators, "ddp", one, 1, KEPT, seed=1)
    (alone,) = run(accelerators, "ddp", one, 2, KEPT + 1, seed=2, size=1)
    assert alone.start == KEPT and alone.began_with == two[0].ended_with == two[1].ended_with
    for it in run(accelerators, "ddp", one, 3, KEPT + 2, seed=3):
        assert it.start == KEPT + 1 and it.began_with == alone.ended_with


def test_by_dcp_in_another_thread_the_copies_follow_the_stream_that_trains(
    accelerators: Accelerators, directories: tuple[Path, Path]
) -> None:
    def ranks(directory: Path, generation: int, until: int, seed: int) -> list[tuple[int, list[float]]]:
        backend = "cpu:gloo,sim:simccl"
        return accelerators.ranks(2, backend, kept_jobs.train_by_dcp, directory, generation, until, seed)

    one, other = directories
    whole = ranks(one, 1, STEPS, seed=1)
    ranks(other, 1, KEPT, seed=2)
    for (_, expected), (start, losses) in zip(whole, ranks(other, 2, STEPS, seed=3), strict=True):
        assert start == KEPT and losses == expected[KEPT:]


def test_what_the_vault_brings_to_a_disk_is_the_state(
    accelerators: Accelerators, directories: tuple[Path, Path]
) -> None:
    written, wrong = accelerators.call(kept_jobs.written_to_disk, directories[0])
    assert written > 60 and not wrong
