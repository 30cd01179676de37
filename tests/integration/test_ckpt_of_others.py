"""`holdfast ckpt` by an operator, on checkpoints whose author would have the operator's rights."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.trainer.checkpoint import Checkpointer

pytestmark = pytest.mark.integration
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
AUTHOR = 54_321


class Runs:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.makedirs, (str(self.path), 0o777, True)


def ckpt(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["ckpt", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_an_export_runs_no_code_of_the_checkpoint(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    Checkpointer(tmp_path / "a").save(1, {"model": {"w": torch.ones(3)}, "evil": Runs(ran), "lr": {"b": (0.9, 2)}})
    command = ("export", 1, "--path", tmp_path / "a", "--format", "dcp", "--to")
    told = ckpt(*command, tmp_path / "out").stdout
    assert not ran.exists() and "omitted" in told and "evil" in told and "--trust" in told
    loaded = {"model": {"w": torch.zeros(3)}, "lr": {"b": None}}
    dcp.load(loaded, checkpoint_id=tmp_path / "out")
    assert torch.equal(loaded["model"]["w"], torch.ones(3)) and loaded["lr"]["b"] == (0.9, 2)
    ckpt(*command, tmp_path / "trusted", "--trust")
    assert ran.exists()


@pytest.mark.parametrize("where", ["value", "metadata"])
def test_an_import_runs_no_code_of_its_source(tmp_path: Path, where: str) -> None:
    ran, source = tmp_path / "ran", tmp_path / "source"
    dcp.save({"w": torch.ones(3)} | ({"evil": Runs(ran)} if where == "value" else {}), checkpoint_id=source)
    if where == "metadata":
        (source / ".metadata").write_bytes(pickle.dumps(Runs(ran)))
    command = ("import", source, "--path", tmp_path / "a", "--step", 1)
    refused = ckpt(*command, code=2).stderr
    assert not ran.exists() and "os.makedirs" in refused and "--trust" in refused
    if where == "value":
        ckpt(*command, "--trust")
        assert ran.exists()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can pass, wherever temporary files of tests lie."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-ckpt-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def authors(place: Path) -> Path:
    """The directory of a job that is another user's."""
    folder = place / "job"
    folder.mkdir(mode=0o700)
    os.chown(folder, AUTHOR, AUTHOR)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that only root can read."""
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"w": torch.ones(3)}, path)
    path.chmod(0o600)
    return path


@only_root
def test_what_root_imports_is_the_users_whose_the_directory_is(authors: Path, source: Path) -> None:
    for step in (1, 2):
        ckpt("import", source, "--path", authors / "checkpoints", "--step", step)
    ckpt("import", source, "--path", authors / "checkpoints", "--step", 2, "--replace")
    assert {path.lstat().st_uid for path in authors.rglob("*")} == {AUTHOR}
    assert os.geteuid() == 0 and os.access(source, os.R_OK)


@only_root
@pytest.mark.parametrize("link", ["checkpoints", "checkpoints/generation-0", "checkpoints/generation-0/step-00000001"])
def test_links_of_the_author_do_not_lead_root_elsewhere(place: Path, authors: Path, source: Path, link: str) -> None:
    roots = place / "roots"
    roots.mkdir(mode=0o755)
    (authors / link).parent.mkdir(parents=True, exist_ok=True)
    (authors / link).symlink_to(roots)
    for path in (authors, *authors.rglob("*")):
        os.chown(path, AUTHOR, AUTHOR, follow_symlinks=False)
    refused = ckpt("import", source, "--path", authors / "checkpoints", "--step", 1, code=2).stderr
    assert "cannot be written" in refused
    assert list(roots.iterdir()) == []


@only_root
def test_a_directory_that_its_user_cannot_pass_is_named(place: Path, authors: Path, source: Path) -> None:
    place.chmod(0o700)
    refused = ckpt("import", source, "--path", authors / "checkpoints", "--step", 1, code=2).stderr
    assert f"cannot be written as its user {AUTHOR}" in refused


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.part"])
@pytest.mark.parametrize("kind", ["pipe", "huge"])
def test_no_command_waits_at_a_pipe_or_takes_all_memory(tmp_path: Path, name: str, kind: str) -> None:
    Checkpointer(tmp_path / "a").save(1, {"w": torch.ones(3)})
    path = tmp_path / "a" / "step-00000001" / name
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        os.truncate(path, 1 << 43)
    there = ("--path", tmp_path / "a")
    shown = ckpt("ls", *there).stdout
    assert "damaged" in shown or "unreadable" in shown
    for command in (("verify", *there), ("export", 1, *there, "--format", "dcp", "--to", tmp_path / "out")):
        done = CliRunner().invoke(main, ["ckpt", *map(str, command)])
        assert done.exit_code in (1, 2) and isinstance(done.exception, SystemExit), done.exception
