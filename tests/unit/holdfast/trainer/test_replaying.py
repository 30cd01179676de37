"""What a rank does that replays: a digest of every step, no checkpoint of its own, and an end when it is told."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import trainer
from holdfast.orders.replay import VARIABLE, ReplaySettings
from holdfast.trainer import replay_run
from holdfast.trainer.checkpoint import Checkpointer, PerRank
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.phases import binding
from holdfast.trainer.replay_run import DIGESTS_MAX, Recorder
from holdfast.trainer.steps import optimizer_steps

SETTINGS = ReplaySettings(until=57, mesh="dp=1", of_mesh="dp=4", steps_min=10_000, steps_max=10_000)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "reports.jsonl"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(path))
    return path


@pytest.fixture
def replaying_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, SETTINGS.encode())
    install_hooks.install()
    yield
    binding.recorder = None


def told(path: Path) -> dict[str, Any]:
    (line,) = (line for line in path.read_text().splitlines() if line)
    report = json.loads(line)
    assert report["kind"] == "replay_result"
    fields: dict[str, Any] = report["fields"]
    path.unlink()
    return fields


def train(steps: int, *, flip_at: int = -1, says: bool = False, poison_at: int = -1) -> None:
    """Steps of a tiny model; at `flip_at` the lowest bit of one gradient is another."""
    optimizer_steps.begin()
    binding.recorder = Recorder(SETTINGS)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.weight.grad is not None
        if step == flip_at:
            model.weight.grad.view(torch.int32)[0, 0] ^= 1
        if step == poison_at:
            model.weight.grad[0, 0] = float("nan")
        optimizer.step()
        if says:
            trainer.step(100 + step, loss=loss)
    binding.recorder.ended()


@pytest.mark.parametrize("says", [False, True], ids=["hooks", "explicit"])
@pytest.mark.usefixtures("replaying_rank")
def test_one_flipped_bit_is_seen_from_its_step_on(reports: Path, says: bool) -> None:
    train(8, says=says)
    first = told(reports)
    train(8, says=says)
    again = told(reports)
    assert first["digests"] == again["digests"] and first["digest"] == again["digest"]
    train(8, says=says, flip_at=5)
    flipped = told(reports)
    assert [one == other for one, other in zip(first["digests"], flipped["digests"], strict=True)] == [True] * 5 + [
        False
    ] * 3
    began = 100 if says else 1
    assert (first["first"], first["last"], first["every"]) == (began, began + 7, 1)


@pytest.mark.usefixtures("replaying_rank")
def test_what_the_script_says_of_a_step_counts_as_well(reports: Path) -> None:
    digests = []
    for loss in (1.0, struct.unpack("d", struct.pack("q", 0x3FF0000000000001))[0]):
        binding.recorder = Recorder(SETTINGS)
        trainer.step(7, loss=loss)
        binding.recorder.ended()
        digests.append(told(reports)["digest"])
    assert digests[0] != digests[1]


@pytest.mark.usefixtures("replaying_rank")
def test_a_number_that_is_not_finite_is_told(reports: Path) -> None:
    train(4, poison_at=2)
    assert told(reports)["bad_step"] == 3
    train(4)
    assert told(reports)["bad_step"] is None


@pytest.mark.usefixtures("replaying_rank")
def test_a_long_replay_tells_fewer_digests_of_the_same_steps(reports: Path) -> None:
    train(100)
    long = told(reports)
    train(20)
    short = told(reports)
    assert (long["every"], long["first"], long["last"]) == (4, 1, 100)
    assert len(long["digests"]) == 25 <= DIGESTS_MAX
    assert long["digests"][:5] == short["digests"][::4]


@pytest.mark.usefixtures("replaying_rank")
def test_a_rank_that_made_no_step_says_so(reports: Path) -> None:
    Recorder(SETTINGS).ended()
    fields = told(reports)
    assert (fields["first"], fields["last"], fields["digests"]) == (-1, -1, [])


def test_a_replay_is_as_long_as_it_is_asked_to_be() -> None:
    settings = ReplaySettings(until=57, mesh="dp=1", of_mesh="dp=4", steps_min=5, steps_max=30)
    assert [settings.steps(begins_after) for begins_after in (46, 56, 60, 0)] == [11, 5, 5, 30]


@pytest.mark.usefixtures("replaying_rank")
def test_it_ends_when_it_is_long_enough(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        assert code == 0
        raise Ended

    monkeypatch.setattr(replay_run.os, "_exit", end)
    recorder = Recorder(ReplaySettings(until=5, mesh="dp=1", of_mesh="dp=4", steps_min=1))
    recorder.resumed(2)
    recorder.step_reported(None, 1.0, None)
    recorder.step_reported(None, 1.0, None)
    with pytest.raises(Ended):
        recorder.step_reported(None, 1.0, None)
    fields = told(reports)
    assert (fields["first"], fields["last"]) == (3, 5)


class Value:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": torch.tensor([self.value])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = int(state_dict["value"])


def test_a_replay_restores_from_the_disk_and_changes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("JOB", "big"), ("JOB_SUBMITTED_MS", "1"), ("GENERATION", "3"), ("RESTORE_STEP", "")):
        monkeypatch.setenv(f"HOLDFAST_{variable}", value)
    saved = Checkpointer(tmp_path)
    for step in (10, 20, 30):
        saved.save(step, {"model": Value(step), "own": PerRank(Value(7))})
    (tmp_path / "step-00000020" / "rank-00000.part").unlink()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

    settings = ReplaySettings(until=40, mesh="dp=1", of_mesh="dp=1")
    monkeypatch.setenv(VARIABLE, settings.encode())
    monkeypatch.setenv("HOLDFAST_GENERATION", "4")
    monkeypatch.setenv("HOLDFAST_RESTORE_STEP", "25")
    state = {"model": Value(0), "own": PerRank(Value(0))}
    replayed = Checkpointer(tmp_path)
    assert replayed.restore(state) == 10
    assert (state["model"].value, state["own"].value.value) == (10, 7)  # type: ignore[union-attr]
    assert not replayed.keep(11, state)
    replayed.save(11, state)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before

    fewer = ReplaySettings(until=40, mesh="dp=1", of_mesh="dp=1", layers=2)
    monkeypatch.setenv(VARIABLE, fewer.encode())
    assert Checkpointer(tmp_path).restore(state) == 0
    assert trainer.replay() == fewer


def test_state_of_a_rank_is_that_of_the_one_whose_place_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReplaySettings(until=40, mesh="dp=1,pp=2", of_mesh="pp=2,dp=2")
    monkeypatch.setenv(VARIABLE, settings.encode())
    assert [replay_run.job_rank(rank) for rank in range(2)] == [0, 2]
    assert replay_run.job_world_size(2) == 4
