"""Whether a version's source tree still has its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.code.in_place import SourceTree
from holdfast.code.manifest import Manifest, digest_of
from holdfast.code.snapshot import snapshot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("one")
    (tmp_path / "config.yaml").write_text("lr: 1")
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "link.py").symlink_to("package/train.py")
    return tmp_path


@pytest.fixture
def version(root: Path) -> Manifest:
    return snapshot(root).manifest


def test_code_that_changed_is_named_and_what_a_script_may_write_is_not(root: Path, version: Manifest) -> None:
    tree = SourceTree(str(root))
    assert tree.differing(version) == ()
    (root / "state.json").write_text('{"step": 7}')
    (root / "new.py").touch()
    assert tree.differing(version) == ()
    # Of the same length, and by another file of the same name, as editors save.
    (root / "other").write_text("two")
    (root / "other").rename(root / "package" / "train.py")
    (root / "config.yaml").write_text("lr: 10")
    assert tree.differing(version) == ("config.yaml", "package/train.py")
    (root / "package" / "train.py").write_text("one")
    assert tree.differing(version) == ("config.yaml",)


def test_files_that_did_not_change_are_not_read_again(
    root: Path, version: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree(str(root))
    assert tree.differing(version) == ()
    read: list[bytes] = []

    def noted(content: bytes) -> str:
        read.append(content)
        return digest_of(content)

    monkeypatch.setattr("holdfast.code.in_place.digest_of", noted)
    (root / "package" / "train.py").write_text("two")
    assert tree.differing(version) == ("package/train.py",) and read == [b"two"]


@pytest.mark.parametrize("change", ["gone", "fifo", "link", "folder"])
def test_a_tree_that_lacks_a_file_cannot_be_run(root: Path, version: Manifest, change: str) -> None:
    script = root / "package" / "train.py"
    if change == "link":
        (root / "link.py").unlink()
        (root / "link.py").symlink_to("config.yaml")
    else:
        script.unlink()
    if change == "fifo":
        os.mkfifo(script)
    if change == "folder":
        script.mkdir()
    assert SourceTree(str(root)).differing(version) is None
    assert SourceTree(str(root / "nowhere")).differing(version) is None
