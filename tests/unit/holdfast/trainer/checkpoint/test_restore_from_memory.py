"""Memory and disk as one choice: what is whole is found, and nothing is cut before something else has proved usable."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointMismatch,
    memory_tier,
)
from holdfast.trainer.checkpoint.environment import Scratch
from holdfast.trainer.checkpoint.errors import StepsAbsent
from holdfast.trainer.checkpoint.memory_tier import VAULT_VARIABLE, FoundSteps, MemoryRefused, MemoryTier, found_steps
from tests.scenes.job_vault import NAME, Vault, at, environment, saved, serve

__all__ = ["environment"]


def damage(directory: Path, step: int) -> None:
    (directory / f"step-{step:08d}/rank-00000.part").write_bytes(b"")


@pytest.mark.parametrize("in_memory", [15, 25])
def test_damage_on_disk_stops_no_job_whose_memory_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    vault = serve(Vault(in_memory), monkeypatch)
    checkpointer = saved(tmp_path, 10, 20)
    damage(tmp_path, 10)
    damage(tmp_path, 20)
    state = {"x": 0}
    assert checkpointer.restore(state) == in_memory
    assert state == {"x": in_memory}
    assert vault.cuts == [SealedStep(generation=1, step=in_memory)]


def test_the_newest_of_memory_and_disk_is_taken_and_of_equals_that_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(5, 10), monkeypatch)
    checkpointer = saved(tmp_path, 10, 20)
    assert checkpointer.restore({"x": 0}) == 20
    assert (vault.cuts, vault.from_disk) == ([SealedStep(generation=2, step=20)], True)
    damage(tmp_path, 20)
    assert checkpointer.restore({"x": 0}) == 10
    assert (vault.cuts[1:], vault.from_disk) == ([SealedStep(generation=1, step=10)], False)


def test_storage_that_cannot_be_read_stops_no_job_whose_memory_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> list[int]:
        raise OSError("stale file handle")

    vault = serve(Vault(25), monkeypatch)
    checkpointer = saved(tmp_path, 10)
    monkeypatch.setattr(checkpointer._storage, "steps", unreadable)
    assert checkpointer.restore({"x": 0}) == 25
    # What a rollback abandons could not be set aside.
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "30")
    with pytest.raises(OSError, match="stale"):
        checkpointer.restore({"x": 0})
    monkeypatch.delenv("HOLDFAST_RESTORE_STEP")
    vault.broken = True
    with pytest.raises(OSError, match="stale"):
        checkpointer.restore({"x": 0})
    assert vault.cuts == [SealedStep(generation=1, step=25)]


def test_the_newest_certified_step_stays_on_the_disk_though_a_script_saves_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(), monkeypatch)
    checkpointer = Checkpointer(tmp_path, keep=1)

    def there_after(step: int) -> list[int]:
        checkpointer.save(step, {"x": step})
        return sorted(checkpointer._storage.steps())

    assert [there_after(step) for step in (10, 20)] == [[10], [20]]
    vault.certified = 25
    assert there_after(30) == [20, 30]
    # What is known stays known while the vault is away, and when it comes back without its orders.
    vault.calls_lost = 1
    assert there_after(40) == [20, 40]
    vault.certified = None
    assert there_after(50) == [20, 50]
    vault.certified = 50
    assert there_after(60) == [50, 60]


def test_nothing_is_cut_before_the_disk_has_proved_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = serve(Vault(), monkeypatch)
    checkpointer = saved(tmp_path, 10)
    with pytest.raises(CheckpointMismatch):
        checkpointer.restore({"x": 0, "y": 0})
    damage(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"steps \[10\] are damaged"):
        checkpointer.restore({"x": 0})
    assert vault.cuts == []


def test_a_run_whose_steps_in_memory_cannot_be_used_is_not_begun_anew_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(5, 6), monkeypatch)
    vault.broken = True
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(CheckpointError, match=r"steps \[5, 6\] are in memory, but they cannot be used"):
        checkpointer.restore({"x": 0})
    assert vault.cuts == []
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "0")
    assert checkpointer.restore({"x": 0}) == 0
    assert vault.cuts == [None]


def test_a_vault_that_comes_back_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = serve(Vault(5), monkeypatch)
    vault.connections_lost, vault.calls_lost = 2, 1
    assert Checkpointer(tmp_path).restore({"x": 0}) == 5
    assert (vault.connections_lost, vault.calls_lost) == (0, 0)


def test_what_one_rank_has_and_another_cannot_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A vault that does not answer may still have, or come to have, what the others have: one that has not does not."""
    monkeypatch.setattr(memory_tier, "RESTARTED_WITHIN_S", 0)
    rows: list[torch.Tensor] = []

    def with_the_others(mine: torch.Tensor) -> list[torch.Tensor]:
        rows.append(mine)
        return rows

    silent = Vault()
    silent.connections_lost = 1
    for vault in (Vault(), silent):
        serve(vault, monkeypatch)
        MemoryTier(NAME, 2).common(with_the_others, None)
    empty, unheard = rows
    serve(Vault(7), monkeypatch)
    tier = MemoryTier(NAME, 2)

    assert tier.common(lambda mine: [mine, unheard], None) == []
    with pytest.raises(
        CheckpointError, match=r"steps \[7\] are in memory, but the vault of another rank does not answer"
    ):
        tier.start_over([])
    assert tier.common(lambda mine: [mine, empty], None) == []
    with caplog.at_level(logging.WARNING):
        tier.start_over([])
    assert "steps [7] are in the memory of some ranks only" in caplog.text


def test_no_step_on_disk_is_given_up_while_a_vault_with_older_ones_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Vault(7), monkeypatch)
    checkpointer = saved(tmp_path, 30)

    def with_a_silent_vault(mine: torch.Tensor) -> list[torch.Tensor]:
        silent = torch.full_like(mine, -1)
        if mine.shape == (1 + memory_tier.STEPS_SHARED_MAX, 2):
            silent[0, 0] = 0
        return [mine, silent]

    monkeypatch.setattr(checkpointer._ranks, "all_gather", with_a_silent_vault)
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "25")
    monkeypatch.setenv("HOLDFAST_SCRATCH", "allow")
    with pytest.raises(StepsAbsent, match=r"steps \[7\] .* does not answer"):
        checkpointer.restore({"x": 0})
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000030"]


class Stateful(nn.Linear):
    """A module with more than parameters, which takes what it is given as it is."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(3)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = state


class Assigning(nn.Linear):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict, assign=True)


@pytest.mark.parametrize("kind", [Stateful, Assigning, nn.BatchNorm1d])
def test_no_module_goes_on_with_memory_that_is_the_vaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]
) -> None:
    module = kind(3, 3) if kind is not nn.BatchNorm1d else kind(3)
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    vault = serve(Vault(5), monkeypatch)
    vault.states[SealedStep(generation=1, step=5)] = {"model": kept}
    assert Checkpointer(tmp_path).restore({"model": module}) == 5
    mine = {tensor.untyped_storage().data_ptr() for tensor in module.state_dict(keep_vars=True).values()}
    mine.add(getattr(module, "extra", torch.empty(0)).untyped_storage().data_ptr())
    assert not mine & {tensor.untyped_storage().data_ptr() for tensor in kept.values()}


def test_without_a_vault_nothing_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VAULT_VARIABLE)
    monkeypatch.setattr(memory_tier.time, "sleep", pytest.fail)
    tier = MemoryTier(NAME, 2)
    assert tier.common(lambda mine: [mine], None) == []
    tier.start_over([])
    with pytest.raises(MemoryRefused, match="there is no vault"):
        tier.load(SealedStep(generation=1, step=1))


class Saves(Vault):
    """A vault that takes saves, and fails at some of them."""

    def save(self, step: int, *_: object) -> None:
        if self.calls_lost:
            self.calls_lost -= 1
            raise WireError("the connection has ended")
        self.states[SealedStep(generation=1, step=step)] = {"x": step}


def test_a_save_waits_for_a_vault_that_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Saves()
    serve(vault, monkeypatch)
    tier = MemoryTier(NAME, 1)
    assert tier.keep(1, {})
    vault.calls_lost, vault.connections_lost = 1, 3
    assert tier.keep(2, {})
    assert [sealed.step for sealed in vault.kept().sealed] == [2, 1]


def test_training_does_not_wait_again_for_a_vault_that_stays_away_and_finds_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vault = Saves()
    serve(vault, monkeypatch)
    now = 100.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(memory_tier.time, "monotonic", lambda: now)
    monkeypatch.setattr(memory_tier.time, "sleep", wait)
    tier = MemoryTier(NAME, 1)
    assert tier.keep(1, {})
    vault.calls_lost, vault.connections_lost = 1, 1_000_000
    assert not tier.keep(2, {})
    assert now == pytest.approx(100 + memory_tier.TRAINING_WAITS_S, abs=0.1)
    waited_until = now
    assert not tier.keep(3, {})
    vault.connections_lost = 0
    assert tier.keep(4, {})
    # It ends once more, too soon to be waited for.
    vault.calls_lost, vault.connections_lost = 1, 1
    assert not tier.keep(5, {})
    assert now == waited_until
    assert tier.keep(6, {})


def test_the_newest_step_of_all_may_not_have_been_whole_and_the_one_before_it_was() -> None:
    assert found_steps([set(), set()]) == FoundSteps()
    assert found_steps([{at(7)}, set()]) == FoundSteps(newest=7)
    assert found_steps([{at(7), at(6)}, {at(6), at(5)}]) == FoundSteps(newest=7, whole=6)
    assert found_steps([{at(7), at(6), at(1)}, {at(1)}]) == FoundSteps(newest=7, whole=6, missing=(1,))
    # A later generation has gone back.
    assert found_steps([{at(4, 2), at(3, 2), at(9)}, {at(3, 2)}]) == FoundSteps(newest=4, whole=3)


def test_a_rank_of_the_release_before_on_another_node_is_understood_and_understands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gathers tensors of this shape, with what it has and whether its vault answers; all must be of one shape."""
    serve(Vault(4, 5), monkeypatch)
    theirs = torch.full((9, 2), -1, dtype=torch.int64)
    theirs[0] = 1
    theirs[1:3] = torch.tensor([(1, 5), (1, 3)])

    def gather(mine: torch.Tensor) -> list[torch.Tensor]:
        assert (mine.shape, mine.dtype, mine[0, 0]) == (theirs.shape, theirs.dtype, 1)
        assert mine[1:3].tolist() == [[1, 5], [1, 4]]
        return [mine, theirs]

    assert MemoryTier(NAME, 2).common(gather, None) == [at(5)]


def test_a_step_that_a_busy_rank_did_not_come_to_was_never_whole() -> None:
    busy = [{at(7), at(6)}, {at(5), at(4)}]
    assert found_steps(busy, [at(7), at(5)]) == FoundSteps(newest=7, whole=5)
    # Its vault is a new one, so it may have made more; or it was on another node in this generation.
    assert found_steps(busy, [at(7), None]) == FoundSteps(newest=7, whole=6, missing=(1,))
    later = [{at(7, 3), at(6, 3)}, {at(5, 3), at(4, 3)}]
    assert found_steps(later, [at(7, 3), at(9)]) == FoundSteps(newest=7, whole=6, missing=(1,))
    assert found_steps([{at(7), at(6)}, set()], [at(7), at(5)]) == FoundSteps(newest=7)


@pytest.mark.parametrize(
    ("steps", "scratch", "is_refused"),
    [
        ((1, 2), Scratch.UNLESS_WHOLE, False),
        ((1, 2, 3), Scratch.UNLESS_WHOLE, True),
        ((1, 2, 3), Scratch.ALLOWED, False),
        ((), Scratch.UNLESS_WHOLE, False),
        ((), Scratch.REFUSED, True),
        ((), Scratch.ALLOWED, False),
    ],
)
def test_a_job_starts_from_scratch_only_if_it_never_had_a_whole_step_or_its_owner_allows_it(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...], scratch: Scratch, is_refused: bool
) -> None:
    serve(Vault(*steps), monkeypatch)
    rows: list[torch.Tensor] = []

    def with_an_empty_rank(mine: torch.Tensor) -> list[torch.Tensor]:
        rows[:] = [mine, torch.full_like(mine, -1)]
        rows[1][0, 0] = 1
        return rows

    tier = MemoryTier(NAME, 2)
    assert tier.common(with_an_empty_rank, None) == []
    if is_refused:
        with pytest.raises(CheckpointError, match="--allow-scratch"):
            tier.start_over([], scratch)
    else:
        tier.start_over([], scratch)


def test_what_was_restored_and_first_kept_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = tmp_path / "reports"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(reports))
    vault = Saves(5, 6)
    serve(vault, monkeypatch)
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    assert checkpointer.restore({"x": 0}) == 6
    for step in (7, 8):
        assert checkpointer.keep(step, {"x": step})
    told = [json.loads(line) for line in reports.read_text().splitlines() if line]
    restored = {"step": 6, "tier": "memory", "newest_step": 6, "whole_step": 6, "missing_ranks": []}
    assert [(each["kind"], each["fields"]) for each in told] == [
        ("checkpoint_restored", restored),
        ("steps_kept", {"step": 7, "kept_for": "any_ranks"}),
    ]
