"""A checkpointer on one rank: what goes in comes out, and what is damaged stays out."""

from __future__ import annotations

import logging
import random
import resource
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.trainer import phases
from holdfast.trainer.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointMismatch,
    PerRank,
    PerShard,
    RngState,
    SavedCheckpoint,
)
from holdfast.trainer.checkpoint.layout.manifest import decode_manifest, encode_manifest
from holdfast.trainer.checkpoint.layout.part_format import set_element

MANY_TENSORS = {
    "matrix": torch.arange(12.0).reshape(3, 4),
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "slice": torch.arange(100)[10:50:4],
    "bfloat16": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.tensor([1 + 2j, -3j]),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.empty(0, 5),
}


class Box:
    """A Stateful that holds whatever it is given."""

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self.content = content or {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.content)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.content = state_dict


class Training:
    """A model far enough in training that the optimizer has moments."""

    def __init__(self, seed: int = 1, width: int = 8) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state = {
            "model": PerShard(self.model, "pp=0"),
            "optimizer": PerShard(self.optimizer, "pp=0"),
            "rng": PerRank(RngState()),
            "loss": float("nan"),
        }

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            # Drawn from all three generators, so that a forgotten one shows.
            inputs = torch.randn(4, self.model[0].in_features) * random.random() + float(np.random.random())
            loss = self.model(inputs).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        self.state["loss"] = losses[-1]
        return losses


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_RESTORE_STEP", "HOLDFAST_JOB_DIR", "HOLDFAST_GENERATION", "HOLDFAST_MESH"):
        monkeypatch.delenv(name, raising=False)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("generation-"))


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_an_interrupted_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    undisturbed = Training()
    undisturbed.steps(3)
    Checkpointer(tmp_path).save(3, undisturbed.state)
    expected = undisturbed.steps(5)

    resumed = Training(seed=2)
    assert Checkpointer(tmp_path).restore(resumed.state) == 3
    assert resumed.state["loss"] != expected[-1]
    assert resumed.steps(5) == expected
    for key, value in undisturbed.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])


def test_a_restore_replaces_plain_values_in_the_state(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, {"tokens": 512, "notes": ["a", "b"], "box": Box({"deep": [{"x": 1}, {"y": None}]})})
    box = Box()
    state = {"tokens": 0, "notes": [], "box": box}
    assert Checkpointer(tmp_path).restore(state) == 1
    assert state == {"tokens": 512, "notes": ["a", "b"], "box": box}
    assert box.content == {"deep": [{"x": 1}, {"y": None}]}


def test_every_kind_of_tensor_comes_back_as_it_was(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, {"box": Box(MANY_TENSORS)})
    box = Box()
    Checkpointer(tmp_path).restore({"box": box})
    assert box.content.keys() == MANY_TENSORS.keys()
    for name, tensor in MANY_TENSORS.items():
        assert box.content[name].dtype == tensor.dtype
        assert torch.equal(box.content[name], tensor), name


def test_nothing_to_restore_is_step_0(tmp_path: Path) -> None:
    training = Training()
    before = training.model.state_dict()["0.weight"].clone()
    assert Checkpointer(tmp_path / "none").restore(training.state) == 0
    assert torch.equal(training.model.state_dict()["0.weight"], before)


def test_the_directory_is_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_GENERATION", "8")
    monkeypatch.setenv("HOLDFAST_MESH", "pp=2, dp=1")
    Checkpointer().save(5, {"x": 1})
    manifest = decode_manifest((tmp_path / "checkpoints/step-00000005/manifest.json").read_bytes())
    assert (manifest.step, manifest.generation, manifest.mesh) == (5, 8, {"pp": 2, "dp": 1})


def test_who_asked_is_told_of_the_saved_checkpoint(tmp_path: Path) -> None:
    told: list[SavedCheckpoint] = []
    Checkpointer(tmp_path, on_saved=told.append).save(5, {"box": Box(MANY_TENSORS)})
    (saved,) = told
    assert saved.step == 5
    assert Path(saved.path) == tmp_path / "step-00000005"
    assert saved.nbytes == (tmp_path / "step-00000005/rank-00000.part").stat().st_size
    assert saved.took_s > 0


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    told: list[SavedCheckpoint] = []
    checkpointer = Checkpointer(tmp_path, keep=2, on_saved=told.append)
    for step in range(1, 6):
        checkpointer.save(step, {"x": step})
    assert names(tmp_path) == ["step-00000004", "step-00000005"]
    assert [saved.steps for saved in told] == [(1,), (1, 2), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda step: (step / "rank-00000.part").write_bytes(b""), "has 0 bytes"),
        (lambda step: flip_bit(step / "rank-00000.part", 3), "fails its checksum"),
        (lambda step: flip_bit(step / "rank-00000.part", -3), "index fails its checksum"),
        (lambda step: (step / "manifest.json").write_bytes(b"{"), "manifest.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_next_older_one_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, said: str
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(10, {"x": 10})
    checkpointer.save(20, {"x": 20})
    damage(tmp_path / "step-00000020")

    state = {"x": 0}
    with caplog.at_level(logging.WARNING):
        assert checkpointer.restore(state) == 10

    assert state == {"x": 10}
    assert names(tmp_path) == ["step-00000010", "step-00000020.damaged"]
    assert "step 20 is damaged" in caplog.text and said in caplog.text


def test_damage_is_found_before_the_model_is_touched(tmp_path: Path) -> None:
    training = Training()
    training.steps(1)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, training.state)
    flip_bit(tmp_path / "step-00000001/rank-00000.part", 3000)
    other = Training(seed=2)
    before = {key: value.clone() for key, value in other.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="from scratch unasked"):
        checkpointer.restore(other.state)
    for key, value in other.model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_run_whose_checkpoints_are_all_damaged_does_not_silently_start_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(10, {"x": 10})
    (tmp_path / "step-00000010/rank-00000.part").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"steps \[10\] are damaged.*HOLDFAST_RESTORE_STEP=0"):
            checkpointer.restore({"x": 0})
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "0")
    assert checkpointer.restore({"x": 0}) == 0


def test_a_rollback_abandons_what_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = Checkpointer(tmp_path)
    for step in (10, 20, 30):
        checkpointer.save(step, {"x": step})
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "25")
    assert checkpointer.restore({"x": 0}) == 20
    monkeypatch.delenv("HOLDFAST_RESTORE_STEP")
    assert checkpointer.restore({"x": 0}) == 20
    assert names(tmp_path) == ["step-00000010", "step-00000020", "step-00000030.rolled-back"]


def test_a_run_that_has_only_newer_checkpoints_than_it_may_restore_is_not_begun_anew_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(30, {"x": 30})
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "25")
    state = {"x": 0}
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no checkpoint of step 25 or before it is left"):
            checkpointer.restore(state)
    # Nothing was touched: a human may trust it.
    assert names(tmp_path) == ["step-00000030"]
    (tmp_path / "step-00000030").rename(tmp_path / "step-00000030.rolled-back")
    with pytest.raises(CheckpointError, match="no checkpoint of step 25 or before it is left"):
        checkpointer.restore(state)
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "0")
    assert checkpointer.restore(state) == 0
    assert state == {"x": 0}


def test_a_run_whose_owner_allows_it_begins_anew_where_only_newer_checkpoints_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(30, {"x": 30})
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "25")
    with pytest.raises(CheckpointError, match="--allow-scratch"):
        checkpointer.restore({"x": 0})
    monkeypatch.setenv("HOLDFAST_SCRATCH", "allow")
    assert checkpointer.restore({"x": 0}) == 0
    assert "no checkpoint of step 25 or before it is left" in caplog.text
    assert names(tmp_path) == ["step-00000030.rolled-back"]


def test_steps_that_the_script_does_not_number_are_counted_from_the_restored_one(tmp_path: Path) -> None:
    checkpointer, ledger = Checkpointer(tmp_path), LedgerWriter(tmp_path / "ledger", rank=0, generation=1)
    phases.bind(ledger)
    try:
        checkpointer.restore({"x": 0})
        for _ in range(10):
            phases.step(loss=1.0)
        assert ledger.step == 9
        checkpointer.save(10, {"x": 10})

        phases.bind(resumed := LedgerWriter(tmp_path / "ledger", rank=0, generation=2))
        assert checkpointer.restore({"x": 0}) == 10
        phases.step(loss=1.0)
        assert (resumed.step, resumed.steps_done) == (10, 1)
    finally:
        phases.binding.ledger = None


def test_a_restore_step_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "latest")
    with pytest.raises(CheckpointError, match="HOLDFAST_RESTORE_STEP='latest' is no step"):
        Checkpointer(tmp_path).restore({"x": 0})


def test_a_model_of_another_shape_is_a_mismatch_not_damage(tmp_path: Path) -> None:
    Checkpointer(tmp_path, mesh={"pp": 1}).save(1, Training().state)
    with pytest.raises(CheckpointMismatch, match=r"(?s)Size mismatch.*saved with 1 ranks as pp=1"):
        Checkpointer(tmp_path).restore(Training(width=16).state)
    assert names(tmp_path) == ["step-00000001"]


def test_a_key_that_the_checkpoint_lacks_is_a_mismatch(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, {"x": 1})
    with pytest.raises(CheckpointMismatch, match="Missing key"):
        Checkpointer(tmp_path).restore({"x": 0, "y": 0})


def test_a_shard_that_the_checkpoint_lacks_names_both_meshes(tmp_path: Path) -> None:
    Checkpointer(tmp_path, mesh={"pp": 1, "dp": 1}).save(1, {"model": PerShard(Box({"w": 1}), "pp=0")})
    with pytest.raises(
        CheckpointMismatch, match=r"1 ranks as pp=1,dp=1; this job runs with 1 ranks as tp=1 and needs shard/pp=1"
    ):
        Checkpointer(tmp_path, mesh={"tp": 1}).restore({"model": PerShard(Box({"w": 0}), "pp=1")})


def test_state_of_each_rank_needs_the_same_number_of_ranks(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, {"rng": PerRank(RngState()), "x": 1})
    path = tmp_path / "step-00000001/manifest.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(decode_manifest(path.read_bytes()), world_size=2)))
    with pytest.raises(CheckpointMismatch, match="saved with 2 ranks; this job runs with 1 ranks"):
        Checkpointer(tmp_path).restore({"rng": PerRank(RngState()), "x": 0})
    assert Checkpointer(tmp_path).restore({"x": 0}) == 1


def test_a_save_that_fails_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"x": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            checkpointer.save(2, {"x": torch.zeros(1 << 16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-00000001"]
    checkpointer.save(2, {"x": 2})
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_arguments_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Checkpointer(tmp_path, keep=0)
    with pytest.raises(ValueError, match="step 0"):
        Checkpointer(tmp_path).save(0, {"x": 1})
    with pytest.raises(ValueError, match="must not contain a dot"):
        Checkpointer(tmp_path).save(1, {"my.model": 1})


def test_set_element_makes_the_lists_and_dicts_on_the_way() -> None:
    root: dict[str, Any] = {}
    set_element(root, ("a", 1, "b"), 2)
    set_element(root, ("a", 0), 1)
    set_element(root, ("c", "d", 0, 1), 3)
    assert root == {"a": [1, {"b": 2}], "c": {"d": [[None, 3]]}}
