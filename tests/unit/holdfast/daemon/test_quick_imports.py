"""A daemon imports no more than it uses: it starts with each node, and again after each failure."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from holdfast.daemon.quick_imports import quick_imports
with quick_imports():
    assert not gc.isenabled()
    import structlog
assert gc.isenabled() and gc.get_freeze_count() > 1000
print("rich" in sys.modules)
import rich.table, structlog.dev
"""


@pytest.mark.parametrize(("log", "draws"), [("", "False"), ("console", "True")])
def test_only_logs_for_people_are_drawn(log: str, draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", log)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == draws + "\n"


NUMBERS = """
import os
from holdfast.daemon.quick_imports import quick_imports
before = dict(os.environ)
with quick_imports():
    import numpy
print(os.environ == before, len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("threads", [None, "2"])
def test_numpy_has_no_threads_of_its_own_and_the_environment_stays(
    threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is more than one core: one thread per core would spin in each daemon."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    done = subprocess.run([sys.executable, "-c", NUMBERS], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "True 1\n"
