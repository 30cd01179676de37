"""The catalogue of an object store: one of many changes it, and nobody who has been replaced, however badly it goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import fsspec
import pytest

from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, Superseded
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart
from holdfast.trainer.checkpoint.objects import catalogue
from holdfast.trainer.checkpoint.objects import journal as checkpoint_journal
from holdfast.trainer.checkpoint.objects.catalogue import Catalogue
from holdfast.trainer.checkpoint.objects.journal import Journal
from holdfast.trainer.checkpoint.objects.object_store import ObjectStorage
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.places import is_url, open_storage
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import UNFENCED, Owner

OLD, NEW = Owner("job", 1000, 7), Owner("job", 1000, 8)
roots = (f"/journal-{number}" for number in itertools.count())


class Store:
    """fsspec's memory, with something that happens right before or after the next object is created."""

    def __init__(self) -> None:
        self._fs = fsspec.filesystem("memory")
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None
        self.overwrites = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        before, self.before = self.before, None
        if before:
            before()
        self._fs.pipe_file(path, value, mode="overwrite" if self.overwrites else mode)
        after, self.after = self.after, None
        if after:
            after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def root() -> Iterator[str]:
    root = next(roots)
    yield root
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(root, recursive=True)


def with_step(step: int) -> Callable[[Catalogue], Catalogue]:
    return lambda current: catalogue.published(current, step, f"there/step-{step:08d}.1")


def claim(store: Any, root: str, owner: Owner) -> Catalogue:
    return Journal(store, root, owner).change(lambda current: catalogue.claimed(current, owner))


def test_of_two_changes_at_once_none_is_lost(store: Store, root: str) -> None:
    one, other = Journal(store, root, UNFENCED), Journal(store, root, UNFENCED)
    store.before = lambda: other.change(with_step(2))
    assert set(one.change(with_step(1)).steps) == {1, 2}
    assert set(other.newest().steps) == {1, 2}


def test_a_newer_generation_that_comes_right_before_the_change_wins(store: Store, root: str) -> None:
    """After the older one has looked: it is the creation that fails, not a question asked before."""
    claim(store, root, OLD)
    journal = Journal(store, root, OLD)
    for change in (with_step(1), lambda current: catalogue.claimed(current, OLD)):
        store.before = lambda: claim(store, root, NEW)
        with pytest.raises(Superseded):
            journal.change(change)
    newest = journal.newest()
    assert newest.steps == {} and newest.holders == {"job": (1000, 8)}


@pytest.mark.parametrize("publishes", ["before it lays the claim", "after"])
def test_a_step_belongs_to_who_published_it_before_the_claim(store: Store, root: str, publishes: str) -> None:
    def publish() -> object:
        return Journal(store, root, OLD).change(with_step(1))

    claim(store, root, OLD)
    if publishes == "after":
        claim(store, root, NEW)
        with pytest.raises(Superseded):
            publish()
        return
    store.before = publish
    assert set(claim(store, root, NEW).steps) == {1}


def test_an_answer_that_is_lost_is_no_change_that_is_lost(store: Store, root: str) -> None:
    """The client sends again what has arrived, and is told that there is such an object."""

    def lost() -> None:
        raise OSError("connection reset")

    journal = Journal(store, root, UNFENCED)
    store.after = lost
    assert set(journal.change(with_step(1)).steps) == {1}
    assert len(store.ls(f"{root}/catalogue", detail=False)) == 1


def test_a_store_that_fails_is_an_error_not_an_endless_loop(store: Store, root: str) -> None:
    def fails() -> None:
        raise PermissionError("403")

    store.before = fails
    with pytest.raises(PermissionError):
        Journal(store, root, UNFENCED).change(with_step(1))


def test_who_slept_until_its_number_was_free_again_changes_nothing(
    store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_journal, "KEPT", 3)
    claim(store, root, OLD)

    def much_later() -> None:
        new = Journal(store, root, NEW)
        claim(store, root, NEW)
        for step in range(10, 20):
            new.change(with_step(step))
        new.prune()

    store.before = much_later
    with pytest.raises(Superseded):
        Journal(store, root, OLD).change(with_step(1))
    assert set(Journal(store, root, NEW).newest().steps) == set(range(10, 20))


def test_pruning_keeps_the_newest(store: Store, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_journal, "KEPT", 2)
    journal = Journal(store, root, UNFENCED)
    for step in range(5):
        journal.change(with_step(step))
    journal.prune()
    assert len(store.ls(f"{root}/catalogue", detail=False)) == 2
    assert set(journal.newest().steps) == set(range(5))


def test_a_store_that_ignores_the_condition_is_refused(store: Store, root: str) -> None:
    store.overwrites = True
    with pytest.raises(CheckpointError, match="If-None-Match"):
        claim(store, root, NEW)


def test_a_catalogue_that_cannot_be_read_is_named(store: Store, root: str) -> None:
    path = f"{root}/catalogue/catalogue-000000000003.json"
    store.pipe_file(path, b'{"steps')
    with pytest.raises(CheckpointError, match=r"000003\.json cannot be read.*go back to the catalogue before"):
        Journal(store, root, NEW).newest()
    store.pipe_file(path, b'{"format":2}')
    with pytest.raises(CheckpointMismatch, match="format 2"):
        Journal(store, root, NEW).newest()


def test_a_generation_replaced_while_it_publishes_leaves_what_counts_alone(store: Store, root: str) -> None:
    part = CheckpointPart(name="p", size=4, index_offset=4, index_crc32=0, holds=("",))
    manifest = CheckpointManifest(step=1, generation=1, world_size=1, mesh={}, created_at=0.0, parts=(part,))
    old, new = (ObjectStorage(store, root, f"memory:/{root}", owner=owner) for owner in (OLD, NEW))
    old.write(1, "p", [b"old."])
    old.publish(manifest)
    old.write(1, "p", [b"new."])
    store.after = new.claim  # once the manifest is written, before the catalogue names it
    with pytest.raises(Superseded):
        old.publish(manifest)
    assert bytes(new.read(1, "p", 0, 4)) == b"old."
    assert [it.state.value for it in new.survey()] == ["complete", "unfinished"]
    new.retain(Retention(1))
    assert [it.state.value for it in new.survey()] == ["complete"]


def test_a_place_is_a_directory_or_a_url(tmp_path: Any) -> None:
    assert isinstance(open_storage(tmp_path), DirectoryStorage)
    local = open_storage(f"file://{tmp_path}/with%20space")
    assert isinstance(local, DirectoryStorage) and local.root == tmp_path / "with space"
    assert isinstance(open_storage("memory://somewhere"), ObjectStorage)
    assert is_url("s3://bucket/key") and not is_url("/a/b") and not is_url(tmp_path)
    for place, said in {
        "s3:/bucket": "before it became a path",
        "http://host/x": "cannot be kept at 'http://host/x'",
        "file://host/x": "names another machine",
    }.items():
        with pytest.raises(CheckpointError, match=said):
            open_storage(place)


def test_catalogue_changes_are_done_already_where_they_were_done() -> None:
    one = catalogue.published(Catalogue(), 5, "a/step-00000005.1")
    changes: list[Callable[[Catalogue], Catalogue]] = [
        lambda it: catalogue.claimed(it, OLD),
        lambda it: catalogue.published(it, 6, "b"),
        lambda it: catalogue.moved_aside(it, 5, "damaged"),
        lambda it: catalogue.retained(it, [5], 1),
    ]
    for change in changes:
        assert change(change(one)) == change(one)
    assert catalogue.claimed(catalogue.claimed(one, NEW), OLD).holders == {"job": (1000, 8)}


def test_the_next_location_is_never_one_that_counts() -> None:
    owner = Owner(generation=3)
    first = catalogue.next_location(Catalogue(), owner, 5)
    assert first == "generation-3/step-00000005.1"
    used = catalogue.published(Catalogue(), 5, first)
    assert catalogue.next_location(used, owner, 5) == "generation-3/step-00000005.2"
    aside = catalogue.moved_aside(used, 5, "damaged")
    assert catalogue.next_location(aside, owner, 5) == "generation-3/step-00000005.2"
    assert catalogue.next_location(aside, owner, 50) == "generation-3/step-00000050.1"
    assert catalogue.next_location(aside, OLD, 5) == "generation-7.job.1000/step-00000005.1"
