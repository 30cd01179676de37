"""What all integrations share: a place in a loader, and any state taken apart for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from holdfast.trainer.checkpoint import CheckpointError
from holdfast.trainer.checkpoint.environment import Scratch
from holdfast.trainer.integrations import HoldfastCallback, callback, keep
from holdfast.trainer.integrations.accelerate_steps import AccelerateSteps
from holdfast.trainer.integrations.kept_steps import KeptSteps, Whole, rng_now, set_rng
from holdfast.trainer.integrations.loaders import begin_after, generator_states, set_generators
from holdfast.trainer.steps.loads import patch_accelerator
from tests.scenes.job_vault import Vault, environment, serve

__all__ = ["environment"]

SAMPLES, BATCH = 20, 2


class Counting(TensorDataset):
    """Counts what is read."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        return super().__getitem__(index)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader]


def test_an_iteration_begins_in_the_middle_of_the_same_order() -> None:
    data = Counting(torch.arange(SAMPLES))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    began = rng_now()
    whole = batches(loader)
    later, data.read = torch.get_rng_state(), 0
    set_rng(began)
    begin_after(loader, 7)
    assert batches(loader) == whole[7:]
    # What is passed over is not read, and the next epoch has all.
    assert data.read == 3 * BATCH and type(loader) is DataLoader
    assert torch.equal(torch.get_rng_state(), later)
    assert sorted(sample for batch in batches(loader) for sample in batch) == list(range(SAMPLES))


def test_workers_that_stay_begin_there_once() -> None:
    generator = torch.Generator().manual_seed(3)
    sampler = BatchSampler(RandomSampler(range(SAMPLES), generator=generator), BATCH, drop_last=False)
    loader = DataLoader(
        TensorDataset(torch.arange(SAMPLES)), batch_sampler=sampler, num_workers=1, persistent_workers=True
    )
    began = generator_states(loader)
    assert len(began) == 1
    first = batches(loader)
    set_generators(loader, began)
    begin_after(loader, 4)
    assert batches(loader) == first[4:]
    assert len(batches(loader)) == len(first)


def test_a_stream_is_read_up_to_the_place() -> None:
    loader = DataLoader(Stream(), batch_size=BATCH)
    begin_after(loader, 8)
    assert batches(loader) == [[16, 17], [18, 19]]
    assert len(batches(loader)) == SAMPLES // BATCH


def test_tensors_are_apart_from_what_is_pickled_wherever_they_lie() -> None:
    moments, weight = torch.randn(3), torch.nn.Parameter(torch.randn(2))
    value = {"state": {0: {"exp_avg": moments}}, "groups": [{"lr": 0.1, "params": [0]}], "pair": (weight, None)}
    state = Whole(value).state_dict()
    assert [tensor.data_ptr() for tensor in state["tensors"]] == [moments.data_ptr(), weight.data_ptr()]
    back = Whole()
    back.load_state_dict({**state, "tensors": [tensor.clone() for tensor in state["tensors"]]})
    assert torch.equal(back.value["state"][0]["exp_avg"], moments)
    assert (back.value["groups"], back.value["pair"][1]) == (value["groups"], None)
    assert "tensors" not in Whole({"lr": 0.1}).state_dict()


def test_an_environment_without_a_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback, "FRAMEWORKS", ("no_such_framework",))
    with pytest.raises(ImportError, match="pip install transformers, or pip install lightning"):
        HoldfastCallback()
    with pytest.raises(TypeError, match="pip install accelerate"):
        keep(object(), object())


def test_without_kept_steps_the_scripts_own_file_serves_and_nothing_begins_from_scratch_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Vault(), monkeypatch)
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SCRATCH", Scratch.REFUSED.value)
    assert KeptSteps().restore(in_file=7) is None
    with pytest.raises(CheckpointError, match="starting from scratch unasked"):
        KeptSteps().restore()


class Accelerator:
    """What `keep` uses of one of accelerate."""

    distributed_type, scaler, step = "NO", None, 0

    def __init__(self) -> None:
        self._models = [torch.nn.Linear(2, 2)]
        self._optimizers = [Optimizer(self._models[0].parameters())]
        self._schedulers: list[Any] = []
        self._custom_objects: list[Any] = []

    def unwrap_model(self, model: Any) -> Any:
        return model

    def load_state(self, input_dir: str) -> None:
        """Load nothing but the count of steps that optimizers keep."""
        for parameter in self._models[0].parameters():
            self._optimizers[0].optimizer.state[parameter] = {"step": torch.tensor(7.0)}


class Optimizer:
    """As accelerate wraps one."""

    def __init__(self, parameters: Any) -> None:
        self.optimizer = torch.optim.AdamW(parameters)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state


class Loader:
    base_dataloader, iteration = None, 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_loop_of_accelerate_goes_on_from_the_state_that_its_script_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Vault(), monkeypatch)
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SCRATCH", Scratch.REFUSED.value)
    monkeypatch.setattr(Accelerator, "load_state", Accelerator.load_state)  # put back afterwards
    patch_accelerator(SimpleNamespace(Accelerator=Accelerator))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="starting from scratch unasked"):
        AccelerateSteps(Accelerator(), Loader())
    accelerator = Accelerator()
    accelerator.load_state("ckpts/epoch_1")
    steps = AccelerateSteps(accelerator, Loader())
    assert (steps.step, steps.is_restored) == (7, False), "as the optimizer has counted"
