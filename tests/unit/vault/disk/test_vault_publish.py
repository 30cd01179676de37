"""What is published of the steps that nodes have written, by the one that has rank 0."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.node.vault.messages import PersistTo
from holdfast.trainer.checkpoint.errors import CheckpointError, Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.layout.recipe import part_name
from holdfast.trainer.checkpoint.storage.directory import VAULT, DirectoryStorage, Storage
from holdfast.trainer.checkpoint.storage.workplace import Owner, Workplace
from holdfast_vault.disk import persist_publish, persist_writer
from holdfast_vault.disk.persist_publish import publish, write_record
from holdfast_vault.disk.persist_task import PersistOutcome, PersistTask, StepDropped, StepPublished

OWNER = Owner("job", 1, 3)
Open = Callable[[], Storage]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    return lambda: DirectoryStorage(tmp_path, owner=OWNER, prefix=VAULT)


def write(storage: Storage, step: int, *ranks: int) -> None:
    """What a node writes of a step."""
    parts = []
    for rank in ranks:
        size = storage.write(step, part_name(rank), [b"x" * 100])
        parts.append(CheckpointPart(name=part_name(rank), size=size, index_offset=size, index_crc32=0, holds=("",)))
    write_record(storage, step, parts)


def task(step: int, *, generation: int = 3, steps_max: int = 9, certified_up_to: int | None = None) -> PersistTask:
    return PersistTask(
        to=PersistTo(place="", steps_max=steps_max, mesh={"dp": 4}),
        job="job",
        submitted_ms=1,
        generation=generation,
        step=step,
        world_size=4,
        shards=(),
        certified_up_to=certified_up_to,
    )


def publishing(
    storage: Storage, of: PersistTask, monkeypatch: pytest.MonkeyPatch, *then: Callable[[], None]
) -> list[PersistOutcome]:
    """All that comes of it, if one of these happens at each look; after the last one patience is at its end."""
    happens = list(then)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        if happens:
            happens.pop(0)()
        else:
            now = persist_publish.WAIT_S_MAX + 1

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now, time=lambda: 0.0)
    monkeypatch.setattr(persist_publish, "time", clock)
    return list(publish(storage, of, 0.0))


def test_a_step_is_published_when_the_last_node_has_written_it(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 10, 0, 1)
    outcomes = publishing(storage, task(10), monkeypatch, lambda: None, lambda: write(opened(), 10, 2, 3))
    path = str(tmp_path / "step-00000010")
    assert outcomes == [StepPublished(step=10, path=path, nbytes=400, took_s=0.0, steps=(10,))]
    manifest = storage.manifest(10)
    assert [part.name for part in manifest.parts] == [part_name(rank) for rank in range(4)]
    assert (manifest.generation, manifest.world_size, manifest.mesh) == (3, 4, {"dp": 4})
    assert storage.unpublished() == []


def test_a_slow_node_s_step_is_waited_for_and_overtaken_by_a_whole_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 10, 0, 1)
    write(storage, 20, 0, 1)
    outcomes = publishing(storage, task(20), monkeypatch, lambda: write(opened(), 20, 2, 3))
    assert [type(it) for it in outcomes] == [StepPublished, StepDropped]
    assert (storage.steps(), storage.unpublished()) == ([20], [])


def test_a_step_that_some_node_never_writes_is_removed_in_the_end(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 10, 0, 1)
    outcomes = publishing(storage, task(10), monkeypatch)
    assert outcomes == [StepDropped(step=10, reason="2 of 4 ranks have not written it")]
    assert (storage.steps(), storage.unpublished()) == ([], [])


def test_what_was_removed_as_overtaken_is_not_published_by_who_comes_late(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 5, 0, 1, 2, 3)
    publishing(storage, task(5), monkeypatch)
    for step in (10, 20, 30, 40, 50):
        write(storage, step, 0, 1, 2)

    def comes_late() -> None:
        size = 100  # its part went with the others', its record comes now
        part = CheckpointPart(name=part_name(3), size=size, index_offset=size, index_crc32=0, holds=("",))
        write_record(opened(), 10, [part])

    def overtaken_again() -> None:
        write(opened(), 20, 3)

    outcomes = publishing(storage, task(50, steps_max=1), monkeypatch, comes_late, overtaken_again)
    assert [(type(it), it.step) for it in outcomes if isinstance(it, StepDropped | StepPublished)][:3] == [
        (StepDropped, 10),
        (StepDropped, 10),
        (StepPublished, 20),
    ]
    assert storage.manifest(20).nbytes == 400


def test_who_is_killed_while_it_publishes_leaves_it_to_the_next(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened()
    write(storage, 10, 0, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            publishing(storage, task(10), monkeypatch)
    assert [type(it) for it in publishing(opened(), task(20), monkeypatch)] == [StepPublished]
    folder = {path.name for path in (storage.root / "step-00000010").iterdir()}  # type: ignore[attr-defined]
    assert folder == {"manifest.json", *(part_name(rank) for rank in range(4))}


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failing", ["drop", "sweep"])
def test_a_step_that_is_there_is_said_to_be_though_what_is_old_cannot_be_removed(
    opened: Open, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    storage = opened()
    write(storage, 10, 0, 1, 2, 3)
    publishing(storage, task(10), monkeypatch)
    write(storage, 20, 0, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Workplace, failing, refuse)
        (outcome,) = publishing(storage, task(20, steps_max=1), monkeypatch)
    assert isinstance(outcome, StepPublished) and outcome.step == 20


def refuse(*_: object) -> None:
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


def test_what_is_published_is_not_said_to_be_lost_when_others_are_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = StepPublished(step=10, path="", nbytes=400, took_s=0.0, steps=(10,))

    def outcomes(of: PersistTask) -> Iterator[PersistOutcome]:
        yield from [there] * (of.step == there.step)
        raise CheckpointError("the mount is gone")

    monkeypatch.setattr(persist_writer, "_outcomes", outcomes)
    assert list(persist_writer.run(task(10))) == [there]
    assert list(persist_writer.run(task(20))) == [StepDropped(step=20, reason="the mount is gone")]


def test_the_newest_certified_up_to_stays_on_the_disk(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened()
    for step in (10, 20, 30, 40, 50):
        write(storage, step, 0, 1, 2, 3)
        publishing(storage, task(step, steps_max=2, certified_up_to=27), monkeypatch)
    assert sorted(storage.steps()) == [20, 40, 50]


def test_what_the_script_has_saved_itself_stays_as_it_is(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = DirectoryStorage(tmp_path, owner=OWNER)
    size = script.write(10, part_name(0), [b"of the script"])
    part = CheckpointPart(name=part_name(0), size=size, index_offset=size, index_crc32=0, holds=("",))
    saved = CheckpointManifest(step=10, generation=3, world_size=1, mesh={}, created_at=1.0, parts=(part,))
    script.publish(saved)
    storage = opened()
    write(storage, 10, 0, 1, 2, 3)
    assert publishing(storage, task(10), monkeypatch) == []
    assert storage.manifest(10) == saved
    # A later generation has trained it anew: what an earlier one saved under its number is replaced.
    later = DirectoryStorage(tmp_path, owner=Owner("job", 1, 4), prefix=VAULT)
    write(later, 10, 0, 1, 2, 3)
    assert isinstance(publishing(later, task(10, generation=4), monkeypatch)[0], StepPublished)
    assert later.manifest(10).world_size == 4


def test_who_was_replaced_meanwhile_publishes_nothing(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 10, 0, 1)

    def replaced() -> None:
        write(opened(), 10, 2, 3)
        DirectoryStorage(tmp_path, owner=Owner("job", 1, 4)).claim()

    with pytest.raises(Superseded):
        publishing(storage, task(10), monkeypatch, replaced)
    assert storage.steps() == []
