"""From which step a script goes on, by what it has loaded and what its optimizer counted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.node.ledger.ledger_layout import Source
from holdfast.trainer.steps.step_start import (
    GENERATION_VARIABLE,
    SUBMITTED_VARIABLE,
    StepStart,
    Weights,
    count_of,
    number_in,
)

MINUTE_S = 60.0


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> float:
    """The second generation of a job that was submitted a minute ago."""
    at = time.time() - MINUTE_S
    monkeypatch.setenv(SUBMITTED_VARIABLE, str(round(at * 1000)))
    monkeypatch.setenv(GENERATION_VARIABLE, "2")
    return at


def trained(kind: type[torch.optim.Optimizer], steps: int, saved: dict[str, Any] | None = None) -> Any:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([parameter], lr=0.1)  # type: ignore[call-arg]
    if saved is not None:
        optimizer.load_state_dict(saved)
    for _ in range(steps):
        parameter.grad = torch.ones(3)
        optimizer.step()
    return optimizer


def written(path: Path, state: Any, at: float) -> tuple[Any, Path]:
    """Return what `torch.load` gives for this state, and the file, last written at this time."""
    torch.save(state, path)
    os.utime(path, (at, at))
    return torch.load(path, weights_only=True), path


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam])
def test_a_restored_optimizer_knows_how_many_steps_it_made(kind: type[torch.optim.Optimizer], submitted: float) -> None:
    start = StepStart()
    start.note_optimizer(trained(kind, 1, saved=trained(kind, 7).state_dict()))
    assert start.decide()[:2] == (7, Source.RESTORED)


def test_its_count_goes_before_a_number_of_something_else(tmp_path: Path, submitted: float) -> None:
    """With accumulated gradients a script's `step` may count batches."""
    start = StepStart()
    start.note_loaded(*written(tmp_path / "ckpt.pt", {"step": 28}, submitted + 1))
    start.note_optimizer(trained(torch.optim.AdamW, 1, saved=trained(torch.optim.AdamW, 7).state_dict()))
    assert start.decide().done == 7


def test_an_optimizer_that_counts_from_0_began_again(submitted: float) -> None:
    start = StepStart()
    start.note_optimizer(trained(torch.optim.AdamW, 1))
    assert start.decide() == (0, Source.OPTIMIZER, "", True)


def test_without_a_count_the_number_in_a_checkpoint_counts(tmp_path: Path, submitted: float) -> None:
    start = StepStart()
    state = {"model": {"weight": torch.ones(2)}, "train": {"iter_num": torch.tensor(150)}, "epoch": 3}
    start.note_loaded(*written(tmp_path / "ckpt.pt", state, submitted + 1))
    start.note_optimizer(trained(torch.optim.SGD, 1))
    assert start.decide() == (150, Source.RESTORED, "iter_num in ckpt.pt", True)


def test_a_checkpoint_without_a_number_makes_it_unknown(tmp_path: Path, submitted: float) -> None:
    start = StepStart()
    start.note_loaded(*written(tmp_path / "weights.pt", {"weight": torch.ones(2)}, submitted + 1))
    start.note_optimizer(trained(torch.optim.AdamW, 1))
    assert start.decide() == (0, Source.OPTIMIZER, "no step in weights.pt", False)


def test_weights_that_are_older_than_the_job_are_none_of_its_checkpoints(tmp_path: Path, submitted: float) -> None:
    start = StepStart()
    start.note_loaded(*written(tmp_path / "pretrained.pt", {"global_step": 500_000}, submitted - MINUTE_S))
    start.note_loaded(*written(tmp_path / "weights.pt", {"weight": torch.ones(2)}, submitted - MINUTE_S))
    start.note_optimizer(trained(torch.optim.AdamW, 1))
    assert start.decide() == (0, Source.OPTIMIZER, "", True)


def test_an_older_number_does_not_count_if_the_job_goes_on_from_other_weights(tmp_path: Path, submitted: float) -> None:
    """Each start loads what the job began with, and then, in a way that is not hooked, its progress."""
    start = StepStart()
    start.note_loaded(*written(tmp_path / "pretrained.pt", {"global_step": 500_000}, submitted - MINUTE_S))
    start.note_optimizer(trained(torch.optim.SGD, 1))
    start.note_weights("digest", Weights.FIRST)
    assert start.decide() == (500_000, Source.RESTORED, "global_step in pretrained.pt", True)
    start.note_weights("another", Weights.OTHER)
    assert not start.decide().is_known


def test_weights_that_training_leaves_as_they_were_show_nothing(tmp_path: Path, submitted: float) -> None:
    """The optimizer's count does, where it keeps one: here a rate that warms up does not move weights of bf16."""
    for kind, known in ((torch.optim.AdamW, True), (torch.optim.SGD, False)):
        start = StepStart()
        start.note_optimizer(trained(kind, 1))
        start.note_weights("digest", Weights.UNMOVED)
        why = "" if known else "the first steps do not change its weights where they are compared"
        assert start.decide() == (0, Source.OPTIMIZER, why, known)
    start.note_loaded(*written(tmp_path / "pretrained.pt", {"global_step": 500}, submitted - MINUTE_S))
    start.note_weights("digest", Weights.UNMOVED)
    assert not start.decide().is_known


def test_a_restart_whose_optimizer_keeps_no_count_may_have_restored_anything(
    submitted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = StepStart()
    start.note_optimizer(trained(torch.optim.SGD, 1))
    assert not start.decide().is_known
    monkeypatch.setenv(GENERATION_VARIABLE, "1")
    assert start.decide().is_known, "a job's first generation begins its own count"


def test_what_a_stream_holds_is_the_jobs_in_a_restart(submitted: float) -> None:
    start = StepStart()
    start.note_loaded({"finished_epoch": 3}, object())
    start.note_optimizer(trained(torch.optim.AdamW, 1))
    assert start.decide() == (0, Source.OPTIMIZER, "no step in a stream", False)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"iteration": 9}, ("iteration", 9)),
        ({"step": 3, "global_step": 8}, ("global_step", 8)),
        ({"step": True}, None),
        ({"step": "9"}, None),
        ({"step": -1}, None),
        ({"step": torch.ones(2)}, None),
        ({"optimizer": {"param_groups": [], "step": 9}}, None),
        ([1, 2], None),
        (torch.nn.Linear(2, 2), None),
    ],
)
def test_a_step_is_a_whole_number_with_a_telling_name(value: Any, found: Any) -> None:
    assert number_in(value) == found


def test_optimizers_that_keep_no_count_have_none() -> None:
    assert count_of(trained(torch.optim.SGD, 3)) is None
    assert count_of(trained(torch.optim.AdamW, 3)) == 3
