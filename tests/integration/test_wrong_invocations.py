"""A wrong invocation ends at once, with a message that names the cause and without a traceback; never with exit 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner, Result

from holdfast import bounded_calls
from holdfast.cli.main import main
from tests.integration.wrong_invocations import every_command, invocations, make_files

pytestmark = pytest.mark.integration

LIMIT_S = 60


def _shown(arguments: list[str]) -> str:
    return ascii(" ".join(arguments))[1:99].rstrip("'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    make_files(folder)
    return folder


@contextmanager
def limit() -> Iterator[None]:
    def late(_: int, __: FrameType | None) -> None:
        pytest.fail(f"no end within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def invoked(arguments: list[str]) -> Result:
    with limit():
        return CliRunner().invoke(main, arguments)


def test_there_are_wrong_invocations_of_every_command() -> None:
    wrong = [arguments for arguments, _ in invocations()]
    assert len(wrong) >= 150
    assert {words[0] for words in wrong} >= set(every_command())


@pytest.mark.parametrize(("arguments", "cause"), [pytest.param(*it, id=_shown(it[0])) for it in invocations()])
def test_a_wrong_invocation_names_its_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], cause: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(bounded_calls, "WRITER_WITHIN_S", 0.05)
    for name in os.environ:
        if name.startswith("HOLDFAST_") or name == "NO_SUCH_VARIABLE":
            monkeypatch.delenv(name)
    result = invoked(arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code != 0
    assert cause in result.output
    assert "Traceback" not in result.output


def test_a_directory_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for arguments in (["status"], ["up"], ["run", "t.py"]):
        result = invoked(arguments)
        assert result.exit_code == 1 and "the current directory was removed" in result.output


def test_output_for_which_there_is_no_space_is_told() -> None:
    command = [sys.executable, "-m", "holdfast.cli", "xid", "79"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the output cannot be written: No space left on device" in done.stderr


def as_rank(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.trainer.rank", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_a_rank_without_its_module_says_so_without_a_traceback(folder: Path) -> None:
    result = as_rank("-m", "no.such.module", folder=folder)
    assert result.returncode == 1
    assert "no module named 'no.such.module'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_module_that_imports_a_missing_one_keeps_its_traceback(folder: Path) -> None:
    (folder / "needy").mkdir(exist_ok=True)
    (folder / "needy" / "__init__.py").write_text("import no_such_module\n")
    (folder / "needy" / "train.py").write_text("")
    result = as_rank("-m", "needy.train", folder=folder)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "no_such_module" in result.stderr
