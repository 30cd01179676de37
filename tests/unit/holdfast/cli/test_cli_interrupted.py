"""Ctrl-C while a command is still being imported."""

import subprocess
import sys

import pytest

# The signal comes with the first look for the module that is named.
INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

from holdfast.cli.__main__ import main
sys.meta_path.insert(0, CtrlC())
at, sys.argv = sys.argv[1], ["holdfast", "jobs"]
main()
"""


@pytest.mark.parametrize("at", ["click", "holdfast.cli.commands.jobs.jobs", "asyncpg"])
def test_it_ends_with_130_and_no_traceback(at: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, at], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (130, "")
