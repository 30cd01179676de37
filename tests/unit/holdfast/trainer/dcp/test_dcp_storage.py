"""The writer and the reader under DCP's own drivers, in one process; what is kept goes through a shard's layout."""

from __future__ import annotations

import logging
import pickle
import threading
from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from holdfast import trainer
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.node.vault.seals import BrokenSeal
from holdfast.trainer.checkpoint.agreement import RankGroup
from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.memory_tier import MemoryTier
from holdfast.trainer.dcp.dcp_storage import Memory, VaultReader, VaultWriter
from holdfast.trainer.vault_client import shard_layout

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

NAME = ShardName(job="job", submitted_ms=1, world_size=1, rank=0)


class Tier(MemoryTier):
    """Keeps shards in this process, where the vault would."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.shards: dict[SealedStep, dict[str, Any]] = {}
        self.damaged: set[int] = set()
        self.reported: list[tuple[int, str]] = []
        self.full = False

    def keep(self, step: int, state: dict[str, Any]) -> bool:
        if not self.full:
            leaves, objects = shard_layout.take_apart(state)
            copied = [leaf._replace(tensor=leaf.tensor.contiguous().clone()) for leaf in leaves]
            places = [shard_layout.place(leaf, leaf.tensor.data_ptr()) for leaf in copied]
            index, pieces, nbytes = shard_layout.lay(places)
            memory = torch.zeros(nbytes, dtype=torch.uint8)
            by_address = {leaf.tensor.data_ptr(): leaf.tensor for leaf in copied}
            for address, size, offset in pieces:
                memory[offset : offset + size] = by_address[address].reshape(-1).view(torch.uint8)
            kept = shard_layout.put_together(index, objects, memory.numpy())
            self.shards[SealedStep(generation=1, step=step)] = kept
        return not self.full

    def common(self, all_gather: Any, at_most: int | None) -> list[SealedStep]:
        return sorted((it for it in self.shards if at_most is None or it.step <= at_most), reverse=True)

    def load(self, sealed: SealedStep) -> dict[str, Any]:
        if sealed.step in self.damaged:
            raise BrokenSeal("flipped")
        return self.shards[sealed]

    def report_restored(self, step: int, tier: str, on_disk: int = 0) -> None:
        self.reported.append((step, tier))

    def go_on_from(self, sealed: SealedStep | None) -> None:
        self.shards = {it: kept for it, kept in self.shards.items() if it == sealed}


@pytest.fixture
def memory() -> Memory:
    it = Memory(NAME, 1)
    it.tier = Tier()
    return it


def state(value: float) -> dict[str, Any]:
    return {
        "weights": {
            "large": torch.full((30, 20), value),
            "turned": torch.full((5, 3), value).T,
            "one": torch.tensor(value),
        },
        "list": [torch.full((2,), value, dtype=torch.bfloat16), torch.empty(0, 4)],
        "epoch": value,
        "order": (1, "two"),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_what_was_saved_is_loaded_and_the_newest_of_it(memory: Memory) -> None:
    for step in (1, 2):
        dcp.save(state(step), storage_writer=VaultWriter(step, memory))
    found, reader = state(0), VaultReader(memory, RankGroup())
    dcp.load(found, storage_reader=reader)
    assert reader.step == 2
    assert same(found, state(2))
    assert isinstance(memory.tier, Tier)
    assert memory.tier.reported == [(2, "memory")]
    # The job goes on from there: the others are forgotten.
    assert [it.step for it in memory.tier.common(None, None)] == [2]


def test_async_save_returns_when_the_state_may_be_changed(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, writer = state(3), VaultWriter(3, memory)
    waiting = threading.Event()
    keep, synchronize = memory.tier.keep, writer.synchronize_staging

    def keep_when_awaited(step: int, kept: dict[str, Any]) -> bool:
        assert waiting.wait(30)
        return keep(step, kept)

    def say_and_synchronize() -> None:
        waiting.set()
        synchronize()

    monkeypatch.setattr(memory.tier, "keep", keep_when_awaited)
    monkeypatch.setattr(writer, "synchronize_staging", say_and_synchronize)
    future = dcp.async_save(saved, storage_writer=writer)
    assert writer.kept
    saved["weights"]["large"].fill_(777)
    future.result()
    found = state(0)
    dcp.load(found, storage_reader=VaultReader(memory, RankGroup()))
    assert same(found, state(3))


def test_async_save_that_fails_in_its_plan_keeps_nobody_waiting(memory: Memory) -> None:
    class Failing(DefaultSavePlanner):
        def create_local_plan(self) -> SavePlan:
            raise OSError("no plan today")

    future = dcp.async_save(state(1), storage_writer=VaultWriter(1, memory), planner=Failing())
    with pytest.raises(CheckpointException, match="no plan today"):
        future.result()
    assert VaultReader(memory, RankGroup()).step == 0


@pytest.mark.skipif("enable_plan_caching" not in signature(DefaultSavePlanner).parameters, reason="torch is too old")
def test_a_planner_that_caches_its_plan_saves_all_the_same(memory: Memory) -> None:
    for step in (1, 2, 3):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state(step), storage_writer=VaultWriter(step, memory), planner=planner)
    found = state(0)
    dcp.load(found, storage_reader=VaultReader(memory, RankGroup()))
    assert same(found, state(3))


def test_a_damaged_step_gives_way_to_the_one_before(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        dcp.save(state(step), storage_writer=VaultWriter(step, memory))
    memory.tier.damaged = {2}  # type: ignore[attr-defined]
    found, reader = state(0), VaultReader(memory, RankGroup())
    dcp.load(found, storage_reader=reader)
    assert (reader.step, same(found, state(1))) == (1, True)
    assert "step 2 in memory cannot be used: flipped" in caplog.text


def test_a_reader_that_finds_nothing_cuts_nothing_before_the_job_has_gone_on(memory: Memory) -> None:
    dcp.save(state(1), storage_writer=VaultWriter(1, memory))
    memory.tier.damaged = {1}  # type: ignore[attr-defined]
    assert VaultReader(memory, RankGroup()).step == 0
    # The disk failed as well, and the ranks come back once more.
    memory.tier.damaged = set()  # type: ignore[attr-defined]
    assert VaultReader(memory, RankGroup()).step == 1
    memory.tier.damaged = {1}  # type: ignore[attr-defined]
    assert VaultReader(memory, RankGroup()).step == 0
    dcp.save(state(1), storage_writer=VaultWriter(8, memory))
    dcp.save(state(1), storage_writer=VaultWriter(9, memory))
    assert [it.step for it in memory.tier.common(None, None)] == [9, 8]


def test_a_reader_is_good_until_the_next_save(memory: Memory) -> None:
    dcp.save(state(1), storage_writer=VaultWriter(1, memory))
    found, reader = state(0), VaultReader(memory, RankGroup())
    some, others = {"weights": found.pop("weights")}, found
    dcp.load(some, storage_reader=reader)
    dcp.load(others, storage_reader=reader)
    assert same({**some, **others}, state(1))
    dcp.save(state(2), storage_writer=VaultWriter(2, memory))
    with pytest.raises(CheckpointException, match="a step was saved since this reader found step 1"):
        dcp.load(others, storage_reader=reader)


def test_a_rollback_bounds_what_is_loaded(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        dcp.save(state(step), storage_writer=VaultWriter(step, memory))
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "2")
    assert VaultReader(memory, RankGroup()).step == 2
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "0")
    reader = VaultReader(memory, RankGroup())
    assert reader.step == 0
    with pytest.raises(CheckpointException, match="look at `step` first"):
        dcp.load(state(0), storage_reader=reader)
    # What was rolled back must not come back when nothing bounds it any more.
    monkeypatch.delenv("HOLDFAST_RESTORE_STEP")
    assert VaultReader(memory, RankGroup()).step == 0


def test_what_a_checkpointer_kept_is_not_taken_for_ones_own(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    memory.tier.keep(5, {"model": {"weight": torch.ones(3)}})
    assert VaultReader(memory, RankGroup()).step == 0
    assert "step 5 in memory was kept by a Checkpointer" in caplog.text


def test_a_vault_that_cannot_does_not_end_the_training(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    memory.tier.full = True  # type: ignore[attr-defined]
    writer = VaultWriter(1, memory)
    with caplog.at_level(logging.WARNING):
        dcp.save(state(1), storage_writer=writer)
    assert not writer.kept
    assert "step 1 is not in memory: 1 of 1 ranks could not keep it" in caplog.text


def test_no_other_process_can_save_for_a_rank(memory: Memory) -> None:
    with pytest.raises(CheckpointError, match="leave async_checkpointer_type at THREAD"):
        pickle.dumps(VaultWriter(1, memory))
    with pytest.raises(ValueError, match="step 0"):
        VaultWriter(0, memory)


def test_outside_of_holdfast_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_JOB", "job")
    monkeypatch.delenv("HOLDFAST_VAULT", raising=False)
    for ask in (lambda: trainer.storage_writer(step=1), trainer.storage_reader):
        with pytest.raises(CheckpointError, match=r"start the script with `holdfast run`, or give DCP another storage"):
            ask()
