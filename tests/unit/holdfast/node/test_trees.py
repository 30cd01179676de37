"""Trees are removed whole, whatever their makers have put into them, and nothing beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.node.trees import remove_tree
from tests.scenes.nested_directories import make_deep


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_text("x")
    (tree / os.fsdecode(b"no\xfftext")).write_text("x")
    os.mkfifo(tree / "a" / "b" / "pipe")
    make_deep(tree, 3_000)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(kept)
    (tmp_path / "tree" / "inner" / "link").symlink_to(kept)
    (tmp_path / "link").symlink_to(kept)
    remove_tree(tmp_path / "tree")
    with pytest.raises(OSError, match="link"):
        remove_tree(tmp_path / "link")
    assert (kept / "file").exists()


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "stays").mkdir(parents=True)
    (tree / "goes" / "too").mkdir(parents=True)
    remove = os.rmdir

    def busy(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stays":
            raise OSError(16, "Device or resource busy", path)
        remove(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", busy)
    with pytest.raises(OSError, match="busy"):
        remove_tree(tree)
    assert [path.name for path in tree.iterdir()] == ["stays"]
