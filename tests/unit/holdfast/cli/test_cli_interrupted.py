"""Ctrl-C while a command is still being imported."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import script

# The signal comes with the first look for the module that is named.
INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
at, sys.argv = sys.argv[1], ["holdfast", *sys.argv[2:]]
from holdfast.cli.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("holdfast.exit_codes", "jobs"),
        ("click", "jobs"),
        ("holdfast.cli.commands.jobs.jobs", "jobs"),
        ("asyncpg", "jobs"),
        ("holdfast.cli.commands.jobs.run", "run"),
        ("nats", "run"),
    ],
)
def test_it_ends_with_130_and_no_traceback(at: str, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, at, command, "train.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_ctrl_c_that_a_shell_keeps_from_commands_in_the_background_stays_ignored() -> None:
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", INTERRUPTED, "click", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("is_ignored", [False, True])
def test_the_installed_script_ends_without_a_traceback_before_anything_of_the_package_is_imported(
    is_ignored: bool, tmp_path: Path
) -> None:
    package = tmp_path / "holdfast" / "cli"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (package / "__main__.py").write_text("def main():\n    print('goes on')\n")
    shell = ('trap "" INT; ' if is_ignored else "") + 'exec "$@"'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, script.__file__, "jobs"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(tmp_path)},
    )
    expected = (0, "goes on\n", "") if is_ignored else (-signal.SIGINT, "", "")
    assert (done.returncode, done.stdout, done.stderr) == expected
