"""A source tree that the kernel watches: whatever changes what a path leads to is noticed, and nothing else is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.code.in_place import SourceTree
from holdfast.code.snapshot import snapshot
from holdfast.code.unchanged import NotWatched, Unchanged

PATHS = ["train.py", "package/model.py", "package/deep/er/layer.py"]


@pytest.fixture
def above() -> Iterator[Path]:
    """A directory in memory: the temporary files of the tests may lie on a file system that is not watched."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def root(above: Path) -> Path:
    for path in PATHS:
        file = above / "project" / "tree" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return above / "project" / "tree"


def _edit_by_renaming(root: Path) -> None:
    (root / "new").write_text("other")
    (root / "new").rename(root / "package/model.py")


def _edit_by_another_name(root: Path) -> None:
    os.link(root / "train.py", root.parent / "another name")
    (root.parent / "another name").write_text("other")


def _replace_directory(root: Path) -> None:
    shutil.copytree(root / "package", root / "copy")
    (root / "package").rename(root / "away")
    (root / "copy").rename(root / "package")


def _replace_tree_from_above(root: Path) -> None:
    shutil.copytree(root.parent, root.parent.with_name("copy"))
    root.parent.rename(root.parent.with_name("away"))
    root.parent.with_name("copy").rename(root.parent)


CHANGES: dict[str, Callable[[Path], object]] = {
    "edit": lambda root: (root / "package/deep/er/layer.py").write_text("other"),
    "edit by renaming": _edit_by_renaming,
    "edit by another name": _edit_by_another_name,
    "times": lambda root: os.utime(root / "train.py"),
    "mode": lambda root: (root / "train.py").chmod(0o600),
    "gone": lambda root: (root / "train.py").unlink(),
    "directory replaced": _replace_directory,
    "directory gone": lambda root: shutil.rmtree(root / "package/deep"),
    "replaced from above": _replace_tree_from_above,
    "gone from above": lambda root: root.parent.rename(root.parent.with_name("away")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_file_or_the_way_to_it_is_noticed(root: Path, change: str) -> None:
    watch = Unchanged(str(root), PATHS)
    assert watch.still()
    CHANGES[change](root)
    assert not watch.still()
    assert not watch.still(), "and it stays so"


def test_what_a_script_writes_beside_its_code_is_not(root: Path) -> None:
    watch = Unchanged(str(root), PATHS)
    for folder in (root, root / "package"):
        (folder / "__pycache__").mkdir()
        for number in range(100):
            (folder / f"{number}.log").write_text("loss 1.0")
            (folder / f"{number}.log").unlink()
    assert watch.still()


def test_news_that_the_kernel_has_dropped_count_as_a_change(root: Path) -> None:
    watch = Unchanged(str(root), PATHS)
    names = [root / name for name in ("a", "b")]
    for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 2 + 1):
        for name in names:
            name.touch()
    assert not watch.still()


def test_a_tree_that_is_changed_elsewhere_is_not_watched(root: Path) -> None:
    with pytest.raises(NotWatched):
        Unchanged("/proc/self", ["status"])
    with pytest.raises(FileNotFoundError):
        Unchanged(str(root), ["missing/file.py"])


def test_a_version_is_compared_with_its_tree_once_while_nothing_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, tree = snapshot(root).manifest, SourceTree(str(root))
    compared: list[object] = []
    compare = SourceTree._compare

    def counted(self: SourceTree, *args: object) -> tuple[str, ...] | None:
        compared.append(args)
        return compare(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(SourceTree, "_compare", counted)
    assert [tree.differing(version) for _ in range(3)] == [()] * 3
    assert len(compared) == 1
    (root / "train.py").write_text("other")
    assert [tree.differing(version) for _ in range(3)] == [("train.py",)] * 3
    assert len(compared) == 2
    (root / "train.py").write_text("train.py")
    assert tree.differing(version) == ()
