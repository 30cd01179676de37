"""Which files belong to the code of a tree, with git and without."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.code.private_files import CLOSED, OF_A_CLUSTER
from holdfast.code.snapshot import SnapshotLimits, SnapshotRefused, snapshot, tree_of
from holdfast.embedded.layout import ClusterLayout

SMALL = SnapshotLimits(files_max=5, file_bytes_max=100, code_bytes_max=250)


def write(root: Path, *paths: str, content: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def paths(root: Path, **options: object) -> list[str]:
    return [entry.path for entry in snapshot(root, **options).manifest.entries]  # type: ignore[arg-type]


def git(root: Path, *arguments: str) -> None:
    names = ("-c", "user.name=ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(("git", "-C", str(root), *names, *arguments), check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write(root, "train.py", "lib/model.py", "gone.py", ".gitignore")
    (root / ".gitignore").write_text("data/\n*.bin\n")
    git(root.parent, "init", "-q", str(root))
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_without_git_all_but_junk_and_what_is_hidden_or_left_by_training(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/model.py", "lib/__pycache__/model.pyc", ".env", ".ssh/key", "a.pyc")
    write(tmp_path, "checkpoints/1.pt", ".venv/bin/python", "node_modules/x")
    (tmp_path / "link").symlink_to("lib/model.py")
    (tmp_path / "data").symlink_to("/usr")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.py").chmod(0o755)
    found = snapshot(tmp_path)
    assert [entry.path for entry in found.manifest.entries] == ["lib/model.py", "link", "train.py"]
    assert found.manifest.entries[2].is_executable and found.commit is None
    assert found.outside == (".env", ".ssh", "checkpoints", "data", "pipe")
    assert found.version == snapshot(tmp_path).version
    write(tmp_path, "lib/model.py", content="y")
    assert found.version != snapshot(tmp_path).version


def test_with_git_what_is_tracked_or_new_and_not_ignored(repository: Path) -> None:
    write(repository, "new.py", "data/1.txt", "weights.bin", "lib/more.bin", "lib/__pycache__/model.pyc")
    (repository / "gone.py").unlink()
    found = snapshot(repository)
    assert [entry.path for entry in found.manifest.entries] == [".gitignore", "lib/model.py", "new.py", "train.py"]
    assert found.outside == ("data", "lib/more.bin", "weights.bin")
    assert found.commit is not None and len(found.commit.id) == 40 and found.commit.is_dirty


def test_a_clean_commit_is_said_to_be_clean_and_a_part_of_a_repository_can_be_taken(repository: Path) -> None:
    found = snapshot(repository)
    assert found.commit is not None and not found.commit.is_dirty
    assert paths(repository / "lib") == ["model.py"]
    write(repository, "new.py")
    part = snapshot(repository / "lib")
    assert part.commit == found.commit


def test_a_repository_within_a_repository_belongs_to_it(repository: Path) -> None:
    write(repository, "inner/a.py", "inner/b.log")
    (repository / "inner/.gitignore").write_text("*.log\n")
    git(repository, "init", "-q", "inner")
    assert [path for path in paths(repository) if path.startswith("inner")] == ["inner/.gitignore", "inner/a.py"]


def test_the_directories_of_a_cluster_and_a_job_are_no_code(repository: Path) -> None:
    write(repository, "cluster/postgres/1", "jobs/a/checkpoints/1")
    exclude = [repository / "cluster", repository / "jobs" / "a"]
    found = snapshot(repository, exclude=exclude)
    assert not [entry.path for entry in found.manifest.entries if entry.path.startswith(("cluster", "jobs"))]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("with_git", [False, True])
def test_what_is_closed_to_other_users_is_no_code(repository: Path, with_git: bool) -> None:
    """Versions are open to all nodes, jobs and readers."""
    if not with_git:
        shutil.rmtree(repository / ".git")
        (repository / ".gitignore").unlink()
    secrets = ("cluster.dump", "reader.env", "keys/orders.pub", "keys/more/controller.key")
    write(repository, *secrets, "vocabulary.txt", "closed.py")
    (repository / "keys").chmod(0o700)
    for path in ("cluster.dump", "reader.env", "closed.py", "lib/model.py"):
        (repository / path).chmod(0o600)
    found = snapshot(repository)
    assert {left.path for left in found.left_out if left.why == CLOSED} == set(secrets)
    code = {entry.path for entry in found.manifest.entries}
    assert code - {".gitignore"} == {"closed.py", "gone.py", "lib/model.py", "train.py", "vocabulary.txt"}


@pytest.mark.usefixtures("umask")
def test_what_git_tracks_is_code_and_so_are_all_files_where_the_umask_closes_them(repository: Path) -> None:
    write(repository, "tracked.json", "new.json")
    git(repository, "add", "tracked.json")
    for path in ("tracked.json", "new.json"):
        (repository / path).chmod(0o600)
    assert "tracked.json" in paths(repository) and "new.json" not in paths(repository)
    os.umask(0o077)
    assert "new.json" in paths(repository)


@pytest.mark.parametrize("with_git", [False, True])
def test_the_directory_of_another_cluster_is_no_code(repository: Path, with_git: bool) -> None:
    if not with_git:
        shutil.rmtree(repository / ".git")
    lab = ClusterLayout(repository / "lab")
    own = [str(file.relative_to(repository)) for file in (lab.cluster_file, lab.secrets_file)]
    write(repository, *own, "lab/nodes/node-0/agent.db", "lab/x.py", "other/cluster.json")
    found = snapshot(repository)
    assert [left.path for left in found.left_out if left.why == OF_A_CLUSTER] == ["lab"]
    code = {entry.path for entry in found.manifest.entries}
    assert "other/cluster.json" in code and not any(path.startswith("lab") for path in code)


def test_what_is_too_much_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "big.txt", content="x" * 101)
    write(tmp_path, "a.py")
    found = snapshot(tmp_path, SMALL)
    assert [entry.path for entry in found.manifest.entries] == ["a.py"] and found.outside == ("big.txt",)
    for number in range(3):
        write(tmp_path, f"{number}.txt", content="x" * (90 + number))
    with pytest.raises(SnapshotRefused, match=r"the largest files are 2\.txt .*, 1\.txt .*: have git ignore"):
        snapshot(tmp_path, SMALL)
    write(tmp_path / "other", "train.py", *(f"many/{number}" for number in range(6)))
    with pytest.raises(SnapshotRefused, match=r"more than 5 files .* most of them in many \(6\): have git"):
        snapshot(tmp_path / "other", SMALL)


def test_a_tree_without_code_and_names_that_cannot_travel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused, match="no code files"):
        snapshot(tmp_path)
    with pytest.raises(SnapshotRefused, match="not a directory"):
        snapshot(tmp_path / "nowhere")
    write(tmp_path, "line\nbreak.py")
    with pytest.raises(SnapshotRefused, match="rename it"):
        snapshot(tmp_path)


def test_the_tree_of_a_script(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree_of(repository / "lib/model.py", tmp_path) == repository
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, "scripts/train.py")
    script = elsewhere / "scripts/train.py"
    assert tree_of(script, elsewhere) == elsewhere
    assert tree_of(script, repository) == elsewhere / "scripts"
    monkeypatch.setattr(Path, "home", lambda: elsewhere)
    assert tree_of(script, elsewhere) == elsewhere / "scripts"
    write(elsewhere, "train.py")
    assert tree_of(elsewhere / "train.py", elsewhere) is None


def test_what_a_link_leads_to_is_not_code_also_if_it_is_put_there_meanwhile(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    write(secrets, "inner/key.py", "train.py", content="secret")
    write(repository, "inner/key.py")
    git(repository, "add", "inner/key.py")
    shutil.rmtree(repository / "inner")
    (repository / "inner").symlink_to(secrets / "inner")
    (repository / "train.py").write_text("x")
    real_open = os.open

    def open_late(path: object, *arguments: int, **options: int) -> int:
        if path == repository / "train.py":
            (repository / "train.py").unlink()
            (repository / "train.py").symlink_to(secrets / "train.py")
        return real_open(path, *arguments, **options)  # type: ignore[arg-type]

    assert b"secret" not in snapshot(repository).contents.values()
    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(SnapshotRefused, match=r"train\.py cannot be read"):
        snapshot(repository)
