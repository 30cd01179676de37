"""What is published of the steps that nodes have written, by the one that has rank 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.trainer.checkpoint_errors import Superseded
from holdfast.trainer.checkpoint_manifest import Manifest, Part
from holdfast.trainer.checkpoint_recipe import part_name
from holdfast.trainer.checkpoint_storage import VAULT, DirectoryStorage, Storage
from holdfast.trainer.checkpoint_workplace import Owner
from holdfast.vault_wire import PersistTo
from holdfast_agent.vault import persist_publish
from holdfast_agent.vault.persist_publish import publish, write_record
from holdfast_agent.vault.persist_task import Dropped, Outcome, PersistTask, Published

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
        parts.append(Part(name=part_name(rank), size=size, index_offset=size, index_crc32=0, holds=("",)))
    write_record(storage, step, parts)


def task(step: int, *, generation: int = 3, steps_max: int = 9, certified_step: int | None = None) -> PersistTask:
    return PersistTask(
        to=PersistTo(place="", steps_max=steps_max, mesh={"dp": 4}),
        job="job",
        submitted_ms=1,
        generation=generation,
        step=step,
        world_size=4,
        shards=(),
        certified_step=certified_step,
    )


def publishing(
    storage: Storage, of: PersistTask, monkeypatch: pytest.MonkeyPatch, *then: Callable[[], None]
) -> list[Outcome]:
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


def test_a_step_is_published_when_the_last_node_has_written_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened()
    write(storage, 10, 0, 1)
    outcomes = publishing(storage, task(10), monkeypatch, lambda: None, lambda: write(opened(), 10, 2, 3))
    assert outcomes == [
        Published(step=10, path=str(storage.root / "step-00000010"), nbytes=400, took_s=0.0, steps=(10,))
    ]  # type: ignore[attr-defined]
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
    assert [type(it) for it in outcomes] == [Published, Dropped]
    assert (storage.steps(), storage.unpublished()) == ([20], [])


def test_a_step_that_some_node_never_writes_is_removed_in_the_end(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    write(storage, 10, 0, 1)
    outcomes = publishing(storage, task(10), monkeypatch)
    assert outcomes == [Dropped(step=10, reason="2 of 4 ranks have not written it")]
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
        part = Part(name=part_name(3), size=size, index_offset=size, index_crc32=0, holds=("",))
        write_record(opened(), 10, [part])

    def overtaken_again() -> None:
        write(opened(), 20, 3)

    outcomes = publishing(storage, task(50, steps_max=1), monkeypatch, comes_late, overtaken_again)
    assert [(type(it), it.step) for it in outcomes if isinstance(it, Dropped | Published)][:3] == [
        (Dropped, 10),
        (Dropped, 10),
        (Published, 20),
    ]
    assert storage.manifest(20).nbytes == 400


def test_the_newest_certified_step_stays_on_the_disk(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened()
    for step in (10, 20, 30, 40, 50):
        write(storage, step, 0, 1, 2, 3)
        publishing(storage, task(step, steps_max=2, certified_step=27), monkeypatch)
    assert sorted(storage.steps()) == [20, 40, 50]


def test_what_the_script_has_saved_itself_stays_as_it_is(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = DirectoryStorage(tmp_path, owner=OWNER)
    size = script.write(10, part_name(0), [b"of the script"])
    part = Part(name=part_name(0), size=size, index_offset=size, index_crc32=0, holds=("",))
    saved = Manifest(step=10, generation=3, world_size=1, mesh={}, created_at=1.0, parts=(part,))
    script.publish(saved)
    storage = opened()
    write(storage, 10, 0, 1, 2, 3)
    assert publishing(storage, task(10), monkeypatch) == []
    assert storage.manifest(10) == saved
    # A later generation has trained it anew: what an earlier one saved under its number is replaced.
    later = DirectoryStorage(tmp_path, owner=Owner("job", 1, 4), prefix=VAULT)
    write(later, 10, 0, 1, 2, 3)
    assert isinstance(publishing(later, task(10, generation=4), monkeypatch)[0], Published)
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
