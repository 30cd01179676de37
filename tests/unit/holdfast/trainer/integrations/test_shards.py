"""Steps of training whose ranks hold parts of the model, as rank 1 of two; and what is reported where none is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.trainer.checkpoint import CheckpointError
from holdfast.trainer.checkpoint.environment import Scratch
from holdfast.trainer.checkpoint.errors import CheckpointMismatch
from holdfast.trainer.integrations import accelerate_loop, kept_steps, lightning_fit, shards, transformers_train
from holdfast.trainer.integrations.kept_steps import KeptSteps, Step, Whole
from tests.scenes.job_vault import Vault, at, environment, serve

__all__ = ["environment"]


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def model(fill: float, placement: Placement | None = None) -> torch.nn.Module:
    """A layer of 4 x 2, of which each rank has two rows."""
    local = torch.full((2, 2), fill)
    lies = [placement or Shard(0)]
    net = torch.nn.Linear(2, 4, bias=False)
    net.weight = torch.nn.Parameter(DTensor.from_local(local, init_device_mesh("cpu", (2,)), lies))
    net.register_buffer("mean", torch.full((3,), fill))
    return net


def stepped(net: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    net.weight.grad = torch.ones_like(net.weight)  # type: ignore[operator]
    optimizer.step()
    return optimizer


def test_parts_and_their_moments_come_back_before_there_is_a_mesh_and_are_placed_once_there_is() -> None:
    net = model(3.0)
    optimizer = stepped(net)
    state = Whole({"model": net.state_dict(), "optimizer": optimizer.state_dict()}).state_dict()
    assert not any(isinstance(tensor, DTensor) for tensor in state["tensors"])
    back = Whole()
    back.load_state_dict({**state, "tensors": [tensor.clone() for tensor in state["tensors"]]})

    later = model(0.0)
    shards.load_model(later, back.value["model"])
    again = torch.optim.AdamW(later.parameters())
    again.load_state_dict(shards.placed_as([later], back.value["optimizer"]))
    assert torch.equal(later.weight.to_local(), net.weight.to_local())  # type: ignore[operator]
    assert torch.equal(later.mean, torch.full((3,), 3.0))  # type: ignore[arg-type]
    moments, kept = again.state[later.weight], optimizer.state[net.weight]
    assert isinstance(moments["exp_avg"], DTensor) and moments["step"] == 1
    assert torch.equal(moments["exp_avg"].to_local(), kept["exp_avg"].to_local())


def test_parts_of_a_model_that_lies_otherwise_now_are_refused() -> None:
    net, whole = model(3.0), Whole()
    optimizer = stepped(net)
    whole.load_state_dict(Whole([net.state_dict(), optimizer.state_dict()]).state_dict())
    other = model(0.0, Replicate())
    with pytest.raises(CheckpointMismatch, match="was kept as"):
        shards.load_model(other, whole.value[0])
    with pytest.raises(CheckpointMismatch, match="nothing of this model lies so now"):
        shards.placed_as([other], whole.value[1])


def test_a_sharded_step_is_this_ranks_own_and_no_other_ranks_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = serve(Vault(), monkeypatch)
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SCRATCH", Scratch.REFUSED.value)
    kept: list[dict[str, Any]] = []
    monkeypatch.setattr(kept_steps.Checkpointer, "keep", lambda _, step, state: kept.append(state))
    KeptSteps(is_sharded=True).keep(Step(7, {"model": {"w": torch.ones(2)}}, {"schedule": 1}, {"rng": b"1"}))
    (state,) = kept
    assert list(state) == ["rank"], "what is not marked PerRank is taken from any rank when their number changes"
    vault.of_four[at(7)] = {"rest": Whole({"schedule": 1}).state_dict()}
    with pytest.raises(CheckpointError):
        KeptSteps(is_sharded=True).restore()


class FullyShardedDataParallel(torch.nn.Linear):
    """As torch's FSDP1 is called."""


def test_what_cannot_be_kept_is_named_before_training(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = SimpleNamespace(distributed_type="FSDP", _models=[FullyShardedDataParallel(1, 1)])
    assert "fsdp_version=2" in accelerate_loop._why_not(accelerator)
    accelerator._models = [model(1.0)]
    assert accelerate_loop._why_not(accelerator) == ""
    accelerator.distributed_type = "DEEPSPEED"
    assert "it has DEEPSPEED" in accelerate_loop._why_not(accelerator)

    plugin = SimpleNamespace(fsdp_version=1)
    trainer = SimpleNamespace(
        is_fsdp_enabled=True, accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    )
    assert not transformers_train._can_be_kept(trainer)
    assert '"fsdp_version": 2' in caplog.text
    plugin.fsdp_version = 2
    assert transformers_train._can_be_kept(trainer)

    class FSDPStrategy:
        """As Lightning's FSDP1 is called."""

    assert lightning_fit.fit_of(SimpleNamespace(strategy=FSDPStrategy())) is None
    assert "ModelParallelStrategy, which is FSDP2, is kept" in caplog.text
