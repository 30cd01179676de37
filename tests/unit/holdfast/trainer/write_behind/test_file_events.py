"""What Python's own audit events say about files, taken from real calls: so the table stays true to the interpreter."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.trainer.write_behind.file_events import Use, uses_of

_seen: list[tuple[str, tuple[object, ...]]] = []
_is_on = [False]


def _note(event: str, args: tuple[object, ...]) -> None:
    if _is_on[0]:
        _seen.append((event, args))


@pytest.fixture(scope="module", autouse=True)
def noting() -> None:
    sys.addaudithook(_note)


def _uses(call: Callable[[], object]) -> set[tuple[Use, str]]:
    _seen.clear()
    _is_on[0] = True
    try:
        call()
    finally:
        _is_on[0] = False
    return {use for event, args in _seen for use in uses_of(event, args)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path.resolve()
    (place / "ckpt.pt").write_bytes(b"old")
    (place / "last.pt").symlink_to("ckpt.pt")
    (place / "step-1").mkdir()
    (place / "step-1" / "m.pt").write_bytes(b"m")
    return place


def test_opening_reads_or_changes_and_links_are_followed(place: Path) -> None:
    assert (Use.READS, f"{place}/ckpt.pt") in _uses(lambda: (place / "ckpt.pt").read_bytes())
    assert (Use.READS, f"{place}/ckpt.pt") in _uses(lambda: (place / "last.pt").read_bytes())
    assert (Use.CHANGES, f"{place}/latest") in _uses(lambda: (place / "latest").write_text("x"))
    log = _uses(lambda: (place / "log.txt").open("a").close())
    assert (Use.READS, f"{place}/log.txt") in log and (Use.CHANGES, f"{place}/log.txt") not in log


def test_entries_of_directories_are_changed_and_not_what_links_lead_to(place: Path) -> None:
    assert (Use.CHANGES, f"{place}/last.pt") in _uses(lambda: os.remove(place / "last.pt"))
    moved = _uses(lambda: os.replace(place / "ckpt.pt", place / "other.pt"))
    assert {(Use.CHANGES, f"{place}/ckpt.pt"), (Use.CHANGES, f"{place}/other.pt")} <= moved
    assert (Use.CHANGES, f"{place}/last.pt") in _uses(lambda: os.symlink("other.pt", place / "last.pt"))
    assert (Use.CHANGES, f"{place}/hard.pt") in _uses(lambda: os.link(place / "other.pt", place / "hard.pt"))
    assert (Use.CHANGES, f"{place}/step-1") in _uses(lambda: shutil.rmtree(place / "step-1"))


def test_a_descriptor_of_a_directory_leads_to_the_entry(place: Path) -> None:
    folder = os.open(place, os.O_DIRECTORY)
    try:
        assert (Use.CHANGES, f"{place}/ckpt.pt") in _uses(lambda: os.unlink("ckpt.pt", dir_fd=folder))
        assert (Use.LISTS, str(place)) in _uses(lambda: os.listdir(folder))
    finally:
        os.close(folder)


def test_listing_copying_and_other_programs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Use.LISTS, str(place)) in _uses(lambda: list(place.glob("*.pt")))
    monkeypatch.chdir(place)
    assert (Use.LISTS, str(place)) in _uses(os.listdir)
    copied = _uses(lambda: shutil.copy(place / "ckpt.pt", place / "copy.pt"))
    assert {(Use.READS, f"{place}/ckpt.pt"), (Use.CHANGES, f"{place}/copy.pt")} <= copied
    assert Use.ANYTHING in {use for use, _ in _uses(lambda: os.system("true"))}


def test_a_path_that_is_none_is_left_to_the_operation() -> None:
    assert list(uses_of("open", ("a\0b", "r", 0))) == []
    assert list(uses_of("os.remove", (object(), -1))) == []
