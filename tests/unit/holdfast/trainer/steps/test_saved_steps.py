"""A file that does not say its step: what was noted when it was saved does, whatever its name is by then."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.node.ledger.ledger_layout import Source
from holdfast.trainer.steps import saves
from holdfast.trainer.steps.notes import FOLDER
from holdfast.trainer.steps.optimizer_steps import State
from holdfast.trainer.steps.step_start import GENERATION_VARIABLE, Saved, StepStart, number_in

SNAPSHOT = {"epoch": 2, "weights": torch.ones(3)}


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch, as far as the hook knows it, in the rank of a job that has made 60 steps."""
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(GENERATION_VARIABLE, "2")
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: 60)
    module: Any = SimpleNamespace(save=torch.save, serialization=SimpleNamespace())
    saves.patch_torch_save(module)
    return module


def test_a_snapshot_that_was_renamed_is_known(hooked: Any, tmp_path: Path) -> None:
    part, path = tmp_path / "snapshot.tmp", tmp_path / "snapshot.pt"
    hooked.save(SNAPSHOT, part)
    part.rename(path)
    start = StepStart()
    start.note_loaded(torch.load(path), path, saves.saved_at(path))
    assert start.decide() == (60, Source.RESTORED, "the save of snapshot.pt", True)


def test_so_is_one_that_the_script_opened(hooked: Any, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"
    with path.open("wb") as file:
        hooked.save(SNAPSHOT, file)
    assert saves.saved_at(path) == Saved(60)


def test_a_file_that_took_over_an_inode_is_not_taken_for_the_one_before(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot.pt"
    for done in (20, 40):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        hooked.save(SNAPSHOT, path)
        time.sleep(0.01)
    assert saves.saved_at(path) == Saved(40)


def test_other_files_are_not(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snapshot.pt"
    hooked.save(SNAPSHOT, path)
    os.utime(path, (1.0, 1.0))
    assert saves.saved_at(path) is None, "it was written again"
    assert saves.saved_at(tmp_path / "missing") is None
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: 0)
    hooked.save(SNAPSHOT, tmp_path / "vocabulary.pt")
    assert saves.saved_at(tmp_path / "vocabulary.pt") is None, "nothing was trained yet"


def test_notes_are_added_and_the_oldest_forgotten(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "NOTES_BYTES_MAX", 1000)
    own = tmp_path / "job" / FOLDER / "rank-00000.jsonl"
    paths = [tmp_path / f"snapshot-{number}.pt" for number in range(30)]
    for number, path in enumerate(paths):
        before = own.stat().st_ino if own.exists() else None
        hooked.save(SNAPSHOT, path)
        if number == 1:
            assert own.stat().st_ino == before, "a file that replaces another one is written to the disk meanwhile"
            with own.open("ab") as file:
                file.write(b'{"inode": 1')
    assert [saves.saved_at(path) for path in paths[-5:]] == [Saved(60)] * 5
    assert saves.saved_at(paths[0]) is None
    assert sum(file.stat().st_size for file in own.parent.iterdir()) < 2.5 * 1000


@pytest.mark.parametrize(
    ("number", "done", "name"),
    [
        (60, 60, "step in snapshot.pt"),
        (59, 60, "step in snapshot.pt"),  # of the last step
        (56, 56, "step in snapshot.pt"),  # the state was copied, and saved beside training
        (180, 60, "the save of snapshot.pt"),  # batches
        (10, 60, "the save of snapshot.pt"),  # of an epoch
    ],
)
def test_a_number_counts_if_it_agrees_with_the_step_of_the_save(
    hooked: Any, tmp_path: Path, number: int, done: int, name: str
) -> None:
    path = tmp_path / "snapshot.pt"
    hooked.save({"epoch": 2, "step": number}, path)
    start = StepStart()
    start.note_loaded(torch.load(path), path, saves.saved_at(path))
    assert start.decide()[:3] == (done, Source.RESTORED, name)


def test_training_goes_on_while_a_thread_saves(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter((60, 65))
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: next(counted))
    hooked.save(SNAPSHOT, tmp_path / "snapshot.pt")
    assert saves.saved_at(tmp_path / "snapshot.pt") == Saved(60)


def test_a_copy_is_known_by_the_number_in_it(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what was moved to another file system, or saved to a stream. `step` counts something else here."""
    last, copy, stream = tmp_path / "last.pt", tmp_path / "best.pt", io.BytesIO()
    for place, number, done in ((last, 128, 60), (last, 7, 65), (stream, 9, 70)):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        hooked.save({"step": number}, place)
        copy.write_bytes(last.read_bytes() if place is last else stream.getvalue())
        assert saves.saved_at(copy) is None
        assert loaded({"step": number}, copy).decide() == (done, Source.RESTORED, "the save of best.pt", True)
    assert loaded({"step": 1000}, copy).decide().done == 1000, "no such number was saved"


def test_saves_of_the_same_number_are_told_apart_by_their_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is that of a step in its epoch."""
    for done, weights in ((5, "a"), (25, "b")):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        monkeypatch.setattr(saves.optimizer_steps, "state", lambda weights=weights: State(None, weights))
        hooked.save({"step": 5}, io.BytesIO())
    start = loaded({"step": 5}, tmp_path / "snapshot.pt")
    assert not start.decide().is_known
    start.note_weights("b", are_the_first=False)
    assert start.decide()[:2] == (25, Source.RESTORED)


def test_a_distributed_checkpoint_is_known_by_the_number_in_it(hooked: Any, tmp_path: Path) -> None:
    state = {"batches": torch.ones(3), "step": 240}
    for name in ("save", "async_save"):
        package: Any = SimpleNamespace(save=lambda *_, **__: 1, async_save=lambda *_, **__: 2)
        saves.patch_dcp_save(package)
        assert getattr(package, name)(state, checkpoint_id=tmp_path) in (1, 2)
        assert saves.saved_with(("step", 240)) == [Saved(60)]
        assert loaded(state, tmp_path).decide().done == 60
        shutil.rmtree(tmp_path / "job")


def loaded(state: dict[str, Any], place: Path) -> StepStart:
    """Return what is known once the script has loaded this."""
    start = StepStart()
    number = number_in(state)
    assert number is not None
    start.note_loaded(state, place, saves.saved_at(place), saves.saved_with(number))
    return start
