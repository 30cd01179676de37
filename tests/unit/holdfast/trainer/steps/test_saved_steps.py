"""A file that does not say its step: what was noted when it was saved does, whatever its name is by then."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.node.ledger.ledger_layout import Source
from holdfast.trainer.steps import loads, saves, weights
from holdfast.trainer.steps.notes import FOLDER
from holdfast.trainer.steps.optimizer_steps import State
from holdfast.trainer.steps.step_start import GENERATION_VARIABLE, Saved, StepStart, Weights

SNAPSHOT = {"epoch": 2, "weights": torch.ones(3)}


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch, as far as the hook knows it, in the rank of a job that has made 60 steps."""
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(GENERATION_VARIABLE, "2")
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: 60)
    monkeypatch.setattr(saves.binding, "ledger", SimpleNamespace(steps_done=60))
    monkeypatch.setattr(saves.binding, "is_begun", False)
    monkeypatch.setattr(saves.binding, "start", StepStart())
    monkeypatch.setattr(saves._Last, "streamed", None)
    module: Any = SimpleNamespace(save=torch.save, serialization=SimpleNamespace())
    saves.patch_torch_save(module)
    return module


def test_a_snapshot_that_was_renamed_is_known(hooked: Any, tmp_path: Path) -> None:
    part, path = tmp_path / "snapshot.tmp", tmp_path / "snapshot.pt"
    hooked.save(SNAPSHOT, part)
    part.rename(path)
    start = loaded(torch.load(path), path)
    assert start.decide() == (60, Source.RESTORED, "the save of snapshot.pt", True)


def test_so_is_one_that_the_script_opened(hooked: Any, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"
    with path.open("wb") as file:
        hooked.save(SNAPSHOT, file)
    assert saved_at(path) == Saved(60)


def test_a_file_that_took_over_an_inode_is_not_taken_for_the_one_before(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snapshot.pt"
    for done in (20, 40):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        hooked.save(SNAPSHOT, path)
        time.sleep(0.01)
    assert saved_at(path) == Saved(40)


def test_other_files_are_not(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snapshot.pt"
    hooked.save(SNAPSHOT, path)
    os.utime(path, (1.0, 1.0))
    assert saved_at(path) is None, "it was written again"
    assert saved_at(tmp_path / "missing") is None
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: 0)
    hooked.save(SNAPSHOT, tmp_path / "vocabulary.pt")
    assert saved_at(tmp_path / "vocabulary.pt") is None, "nothing was trained yet"


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
    assert [saved_at(path) for path in paths[-5:]] == [Saved(60)] * 5
    assert saved_at(paths[0]) is None
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
    start = loaded(torch.load(path), path)
    assert start.decide()[:3] == (done, Source.RESTORED, name)


def test_training_goes_on_while_a_thread_saves(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter((60, 65))
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: next(counted))
    hooked.save(SNAPSHOT, tmp_path / "snapshot.pt")
    assert saved_at(tmp_path / "snapshot.pt") == Saved(60)


def test_a_copy_is_known_by_the_number_in_it(hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what was moved to another file system, or saved to a stream. `step` counts something else here."""
    last, copy, stream = tmp_path / "last.pt", tmp_path / "best.pt", io.BytesIO()
    for place, number, done in ((last, 128, 60), (last, 7, 65), (stream, 9, 70)):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        hooked.save({"step": number}, place)
        copy.write_bytes(last.read_bytes() if place is last else stream.getvalue())
        assert saved_at(copy) is None
        assert loaded({"step": number}, copy).decide() == (done, Source.RESTORED, "the save of best.pt", True)
    assert loaded({"step": 1000}, copy).decide().done == 1000, "no such number was saved"


def test_saves_of_the_same_number_are_told_apart_by_their_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is that of a step in its epoch."""
    for done, digest in ((5, "a"), (25, "b")):
        monkeypatch.setattr(saves.binding, "steps_completed", lambda done=done: done)
        monkeypatch.setattr(saves.optimizer_steps, "state", lambda digest=digest: State(None, digest))
        hooked.save({"step": 5}, io.BytesIO())
    start = loaded({"step": 5}, tmp_path / "snapshot.pt")
    assert not start.decide().is_known
    start.note_weights("b", Weights.OTHER)
    assert start.decide()[:2] == (25, Source.RESTORED)


@pytest.mark.parametrize("name", ["save", "async_save"])
def test_a_distributed_checkpoint_is_known_by_the_number_in_it(hooked: Any, tmp_path: Path, name: str) -> None:
    state = {"batches": torch.ones(3), "step": 240}
    package: Any = SimpleNamespace(save=lambda *_, **__: "save", async_save=lambda *_, **__: "async_save")
    saves.patch_dcp_save(package)
    assert getattr(package, name)(state, checkpoint_id=tmp_path) == name
    assert saves.find_saves(tmp_path, ("step", 240)) == (None, [Saved(60)])
    assert loaded(state, tmp_path).decide().done == 60


def at(monkeypatch: pytest.MonkeyPatch, done: int, weights: str | None, own_count: int | None = None) -> None:
    """Let the job have made these steps, and have these weights."""
    monkeypatch.setattr(saves.binding, "steps_completed", lambda: done)
    monkeypatch.setattr(saves.optimizer_steps, "state", lambda: State(own_count, weights))


def test_each_rank_compares_its_own_part_of_the_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        for done in (5, 25):
            at(monkeypatch, done, f"part {rank} at {done}")
            hooked.save({"step": 5}, io.BytesIO())
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        start = loaded({"step": 5}, tmp_path / "snapshot.pt")
        start.note_weights(f"part {rank} at 25", Weights.OTHER)
        assert start.decide()[:2] == (25, Source.RESTORED)


def test_a_later_generation_may_have_made_the_same_step_with_other_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes that were set aside are no newer than the others."""
    folder = tmp_path / "job" / FOLDER
    for when in ("before", "after"):
        for done in (5, 25):
            at(monkeypatch, done, f"{when} {done}")
            hooked.save({"step": 5}, io.BytesIO())
        if when == "before":
            for file in folder.iterdir():
                file.rename(file.with_suffix(".jsonl.older"))
    start = loaded({"step": 5}, tmp_path / "snapshot.pt")
    start.note_weights("after 25", Weights.OTHER)
    assert start.decide()[:2] == (25, Source.RESTORED)


def test_streams_after_each_step_do_not_push_out_notes_of_files(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 files are known, and their notes may be long."""
    folder = tmp_path / "job" / FOLDER
    paths = [tmp_path / f"snapshot-{number}.pt" for number in range(100)]
    for number, path in enumerate(paths):
        at(monkeypatch, 9_000_000 + number, "0123456789abcdef" * 2, own_count=9_000_000)
        hooked.save({"current_step": 9_000_000 + number}, path)
    for done in range(1, 400):
        at(monkeypatch, done, "0123456789abcdef" * 2)
        for _ in range(2):
            hooked.save({"step": 3 * done}, io.BytesIO())
    known = [saved_at(path) for path in paths]
    assert [saved and saved.done for saved in known] == [9_000_000 + number for number in range(100)]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4.2 * saves.NOTES_BYTES_MAX


def test_what_a_step_streams_is_noted_once(hooked: Any, tmp_path: Path) -> None:
    for _ in range(5):
        hooked.save({"step": 180}, io.BytesIO())
    (notes,) = (tmp_path / "job" / FOLDER).iterdir()
    assert len(notes.read_bytes().split()) == 1
    assert loaded({"step": 180}, tmp_path / "snapshot.pt").decide().done == 60


def test_notes_of_other_ranks_are_read_only_where_none_of_the_own_counts(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure a thousand ranks load at once."""
    for rank in range(6):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setattr(saves._Last, "streamed", None)
        hooked.save({"step": 180}, io.BytesIO())
        hooked.save(SNAPSHOT, tmp_path / f"shard-{rank}.pt")
    monkeypatch.setenv("RANK", "4")
    read: list[str] = []
    original = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert saves.find_saves(tmp_path / "shard-4.pt", None) == (Saved(60), [])
    assert saves.find_saves(None, ("step", 180)) == (None, [Saved(60)])
    assert {name[-11:-6] for name in read} == {"00000", "00004"}
    read.clear()
    assert saves.find_saves(tmp_path / "shard-2.pt", None) == (Saved(60), [])
    assert len(read) == len(set(read)) == 6


def test_the_only_save_of_a_number_does_not_count_if_it_had_other_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the step that was restored was not noted."""
    at(monkeypatch, 5, "a")
    hooked.save({"step": 5}, io.BytesIO())
    start = loaded({"step": 5}, tmp_path / "snapshot.pt")
    start.note_weights("b", Weights.OTHER)
    assert not start.decide().is_known
    start.note_weights("a", Weights.OTHER)
    assert start.decide().done == 5


def test_saves_with_the_same_count_are_told_apart_by_their_weights(
    hooked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage has a new optimizer, which counts from 0."""
    for done, digest in ((5, "a"), (25, "b")):
        at(monkeypatch, done, digest, own_count=5)
        hooked.save({"step": 5}, io.BytesIO())
    start = loaded({"step": 5}, tmp_path / "snapshot.pt")
    start.note_that_counts_begin_again()
    parameter = torch.nn.Parameter(torch.ones(1))
    start.note_optimizer(SimpleNamespace(param_groups=[{"params": [parameter]}], state={parameter: {"step": 6}}))
    for digest, decided in (("a", 5), ("b", 25), ("c", None)):
        start.note_weights(digest, Weights.OTHER)
        assert (start.decide().done if start.decide().is_known else None) == decided


def test_weights_that_the_first_steps_left_show_only_others(hooked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GENERATION_VARIABLE, "1")
    assert weights.compared("a") is None
    monkeypatch.setenv(GENERATION_VARIABLE, "2")
    assert [weights.compared(digest) for digest in "ab"] == [Weights.FIRST, Weights.OTHER]
    weights.note_unmoved("b")
    assert weights.compared("a") is Weights.FIRST
    weights.note_unmoved("a")
    assert [weights.compared(digest) for digest in "ab"] == [Weights.UNMOVED, Weights.OTHER]


def saved_at(path: Path) -> Saved | None:
    return saves.find_saves(path, None)[0]


def loaded(state: dict[str, Any], place: Path) -> StepStart:
    """Return what is known once the script has loaded this."""
    saves.binding.start = StepStart()
    loads._note(state, place)
    return saves.binding.start
