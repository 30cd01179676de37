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
