"""State that a rank kept while its job had another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.trainer.checkpoint import Checkpointer, CheckpointError, PerRank, RngState
from holdfast.trainer.checkpoint.environment import Scratch
from tests.scenes.job_vault import Vault, at, environment, saved, serve

__all__ = ["environment"]


def test_what_a_rank_of_another_size_kept_serves_if_all_ranks_have_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(), monkeypatch)
    vault.of_four = {at(step): {"x": step, "w": torch.full((3,), float(step))} for step in (24, 25)}
    checkpointer = Checkpointer(tmp_path)
    state: dict[str, Any] = {"x": 0, "w": torch.zeros(3)}
    assert checkpointer.restore(state) == 25
    assert (state["x"], state["w"].tolist(), vault.cuts) == (25, [25.0] * 3, [at(25)])
    # What a later generation has on the disk is newer, whatever its number.
    saved(tmp_path, 10)
    assert checkpointer.restore({"x": 0}) == 10
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "24")
    for step in tmp_path.glob("step-*"):
        step.rename(step.with_suffix(".gone"))
    assert checkpointer.restore(state) == 24


def test_state_that_differs_between_ranks_is_not_taken_from_one_of_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(), monkeypatch)
    vault.of_four = {at(25): {"x": 25}}
    state = {"x": PerRank(RngState())}
    monkeypatch.setenv("HOLDFAST_SCRATCH", Scratch.REFUSED.value)
    with pytest.raises(CheckpointError, match="kept by 4 ranks, but the state has entries marked PerRank"):
        Checkpointer(tmp_path).restore(state)
    monkeypatch.setenv("HOLDFAST_SCRATCH", Scratch.ALLOWED.value)
    assert Checkpointer(tmp_path).restore(state) == 0
    checkpointer = saved(tmp_path, 10)
    assert checkpointer.restore({"x": 0}) == 10
