"""A generation that was replaced changes nothing any more, however it overlaps with the one that replaced it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.exit_codes import SUPERSEDED
from holdfast.trainer.checkpoint import Checkpointer, CheckpointError
from holdfast.trainer.checkpoint.errors import Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import Owner
from tests.warm_python import WarmPython

ROUNDS = 30


def storage(root: Path, generation: int, *, job: str = "job", submitted_ms: int = 1000) -> DirectoryStorage:
    return DirectoryStorage(root, owner=Owner(job, submitted_ms, generation))


def manifest(step: int, generation: int) -> CheckpointManifest:
    part = CheckpointPart(name="rank-00000.part", size=4, index_offset=4, index_crc32=0, holds=("",))
    return CheckpointManifest(step=step, generation=generation, world_size=1, mesh={}, created_at=0.0, parts=(part,))


def save(storage: DirectoryStorage, step: int, generation: int) -> None:
    storage.write(step, "rank-00000.part", [b"data"])
    storage.publish(manifest(step, generation))


def content(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


CHANGES: dict[str, Callable[[DirectoryStorage], object]] = {
    "write": lambda old: old.write(3, "rank-00000.part", [b"data"]),
    "publish": lambda old: old.publish(manifest(2, 7)),
    "retain": lambda old: old.retain(Retention(1)),
    "set aside": lambda old: old.set_aside(1, "damaged"),
    "claim": lambda old: old.claim(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_who_was_replaced_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, change: Callable[[DirectoryStorage], object]
) -> None:
    old, new = storage(tmp_path, 7), storage(tmp_path, 8)
    save(old, 0, 7)
    save(old, 1, 7)
    old.write(2, "rank-00000.part", [b"data"])
    new.claim()
    before = content(tmp_path)
    with pytest.raises(Superseded, match=r"generation 8 of job job .* generation 7"):
        change(old)
    assert content(tmp_path) == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_who_comes_late_is_refused_too(tmp_path: Path, change: Callable[[DirectoryStorage], object]) -> None:
    save(storage(tmp_path, 8), 1, 8)
    before = content(tmp_path)
    with pytest.raises(Superseded):
        change(storage(tmp_path, 7))
    assert content(tmp_path) == before


@pytest.mark.parametrize("change", ["publish", "retain", "set aside"])
def test_it_is_the_rename_that_fails_not_a_question_asked_before(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer generation comes at the worst moment: after the older one has looked, right before it renames."""
    old, new = storage(tmp_path, 7), storage(tmp_path, 8)
    save(old, 0, 7)
    save(old, 1, 7)
    old.write(2, "rank-00000.part", [b"data"])
    rename = os.rename
    after_claim: list[str] = []

    def late(source: Path, target: Path) -> None:
        if not after_claim:
            monkeypatch.setattr(os, "rename", rename)
            new.claim()
            after_claim.extend(content(tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(Superseded):
        CHANGES[change](old)
    assert content(tmp_path) == after_claim
    assert new.steps() and max(new.steps()) == 1


def test_other_jobs_and_later_submissions_are_no_newer_generations(tmp_path: Path) -> None:
    save(storage(tmp_path, 8), 1, 8)
    save(storage(tmp_path, 1, job="other"), 2, 1)
    save(storage(tmp_path, 1, submitted_ms=2000), 3, 1)
    with pytest.raises(Superseded):
        save(storage(tmp_path, 9), 4, 9)
    save(storage(tmp_path, 2, job="other"), 4, 2)


def test_who_restores_claims_and_who_was_replaced_ends_even_if_it_catches_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_RESTORE_STEP", raising=False)
    monkeypatch.setenv("HOLDFAST_JOB", "job")
    monkeypatch.setenv("HOLDFAST_GENERATION", "7")
    old = Checkpointer(tmp_path)
    old.save(1, {"x": 1})
    monkeypatch.setenv("HOLDFAST_GENERATION", "8")
    new, state = Checkpointer(tmp_path), {"x": 0}
    assert new.restore(state) == 1
    for leftover in (lambda: old.save(2, {"x": 2}), lambda: old.restore({"x": 0})):
        # As a script does that would rather train on than stop for a full disk.
        with pytest.raises(SystemExit) as ended, suppress(CheckpointError):
            leftover()
        assert isinstance(ended.value.__cause__, Superseded)
        assert ended.value.code == SUPERSEDED
    new.save(2, {"x": 3})
    assert Checkpointer(tmp_path).restore(state) == 2 and state == {"x": 3}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def test_a_claim_that_was_cut_short_is_made_good_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage(tmp_path, 7).write(2, "rank-00000.part", [b"data"])

    def killed(*_: object, **__: object) -> None:
        raise Killed

    new = storage(tmp_path, 8)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            new.claim()
    assert list(tmp_path.glob("revoked-*/step-00000002"))
    other = storage(tmp_path, 1, job="other")
    other.claim()
    assert list(tmp_path.glob("revoked-*/step-00000002"))
    new.claim()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generation-1.other.1000", "generation-8.job.1000"]


@pytest.mark.parametrize("by", ["killed", "replaced"])
def test_a_step_on_its_way_aside_is_not_lost(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only step there is, damaged: without a trace of it the job would start from scratch, unasked."""
    monkeypatch.delenv("HOLDFAST_RESTORE_STEP", raising=False)
    monkeypatch.setenv("HOLDFAST_JOB", "job")
    old = storage(tmp_path, 7, submitted_ms=0)
    (tmp_path / "step-00000001.damaged").mkdir()
    save(old, 1, 7)
    rename, renamed = os.rename, itertools.count()

    def cut_short(source: Path, target: Path) -> None:
        if next(renamed) == 1:
            if by == "killed":
                raise Killed
            storage(tmp_path, 8, submitted_ms=0).claim()
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", cut_short)
        with pytest.raises(Killed if by == "killed" else Superseded):
            old.set_aside(1, "damaged")
    monkeypatch.setenv("HOLDFAST_GENERATION", "9")
    with pytest.raises(CheckpointError, match=r"\[1, 1\] are damaged"):
        Checkpointer(tmp_path).restore({"x": 1})
    assert (tmp_path / "step-00000001.damaged-2" / "manifest.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_who_may_not_take_over_says_so_and_never_goes_on_unfenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relative, for what is above belongs to root alone. In a sticky directory names belong to who made them.
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o1777)
    save(storage(Path(), 7), 1, 7)
    new = storage(Path(), 8)
    os.seteuid(65534)
    try:
        for change in (new.claim, new.claim, lambda: new.write(2, "rank-00000.part", [b"data"])):
            with pytest.raises(CheckpointError, match=r"generation-7.* cannot be removed \(Operation not permitted\)"):
                change()
    finally:
        os.seteuid(0)
    new.claim()
    save(new, 2, 8)


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    """A file system for 20 files and directories."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=21", "none", tmp_path], check=False).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(root: Path) -> list[Path]:
    """Make files until there is no space for another one; return them."""
    made: list[Path] = []
    with suppress(OSError):
        while True:
            made.append(root / f"filler-{len(made)}")
            made[-1].touch()
    return made[:-1]


def test_a_restore_needs_no_space(few_files: Path) -> None:
    save(storage(few_files, 7), 1, 7)
    shutil.rmtree(few_files / "generation-7.job.1000")
    fillers, new = fill(few_files), storage(few_files, 8)
    new.claim()
    assert new.manifest(1).generation == 7
    with pytest.raises(CheckpointError, match="No space left"):
        new.write(2, "rank-00000.part", [b"data"])
    for filler in fillers:
        filler.unlink()
    save(new, 2, 8)


def test_who_is_replaced_where_there_is_no_space_is_refused_and_gives_up_its_own(few_files: Path) -> None:
    old, new = storage(few_files, 7), storage(few_files, 8)
    save(old, 1, 7)
    for name in ("rank-00000.part", "rank-00001.part"):
        old.write(2, name, [b"data"])
    fill(few_files)
    new.claim()
    with pytest.raises(Superseded):
        old.publish(manifest(2, 7))
    save(new, 2, 8)
    assert sorted(new.steps()) == [1, 2]


def _old_generation(root: Path) -> None:
    """Save, keep two and set one aside now and then, as fast as it goes, until refused; in each round anew."""
    for number in range(ROUNDS):
        old = storage(root / str(number), 7)
        try:
            for step in itertools.count(1):
                save(old, step, 7)
                old.retain(Retention(2))
                if step % 5 == 0:
                    old.set_aside(step, "damaged")
        except Superseded:
            continue


def test_two_processes_race(tmp_path: Path) -> None:
    """From the claim on the steps are the new generation's alone, at whatever moment it comes."""
    process = WarmPython([sys.executable, __file__, str(tmp_path)])
    try:
        for number in range(ROUNDS):
            root = tmp_path / str(number)
            new = storage(root, 8)
            while not len(new.steps()) >= 2:
                assert process.poll() is None
                # A loop without a pause would take its processor.
                time.sleep(0.001)
            new.claim()
            inherited = {step: new.manifest(step) for step in new.steps()}
            furthest = max(inherited, default=0)
            for step in range(furthest + 1, furthest + 9):
                save(new, step, 8)
            expected = inherited | {step: manifest(step, 8) for step in range(furthest + 1, furthest + 9)}
            assert {step: new.manifest(step) for step in new.steps()} == expected
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    _old_generation(Path(sys.argv[1]))
