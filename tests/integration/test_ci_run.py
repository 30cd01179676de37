"""`.ci/run` fails if any part of it does, shows what failed, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.node.kernel import started_ticks

CI = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/bin/sh
for target; do
    case $target in -*) continue ;; esac
    echo "makes $target"
    echo "$target" >>"$PLACE/made"
    [ "$target" != "$FAILS" ] || { echo "$target failed"; exit 2; }
done
"""
INTERRUPTED = """#!/bin/sh
case "$*" in
*check-mypy*) echo $$ >"$PLACE/checker.new"; mv "$PLACE/checker.new" "$PLACE/checker"; exec sleep 1000 ;;
*test*) until [ -e "$PLACE/checker" ]; do sleep 0.01; done; kill -TERM $PPID ;;
esac
"""


def _run(place: Path, make: str, fails: str = "") -> subprocess.CompletedProcess[str]:
    """Run it with this program in place of make."""
    program = place / "make"
    program.write_text(make)
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "PLACE": str(place), "FAILS": fails}
    return subprocess.run([CI], env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("fails", ["", "setup", "check-style", "check-imports", "check-mypy", "check-pyright", "test"])
def test_a_failure_of_any_part_is_shown_and_fails_the_whole(tmp_path: Path, fails: str) -> None:
    done = _run(tmp_path, MAKE, fails)
    assert (done.returncode != 0) == bool(fails), done
    assert (f"{fails} failed" in done.stdout) == bool(fails)
    made = (tmp_path / "made").read_text().split()
    if fails in ("", "check-pyright", "test"):
        assert sorted(made) == ["check-imports", "check-mypy", "check-pyright", "check-style", "setup", "test"]
    assert ("test" in made) == (fails not in ("setup", "check-style", "check-imports")), "they cost minutes"


def test_whoever_ends_it_ends_the_check_of_types_too(tmp_path: Path) -> None:
    done = _run(tmp_path, INTERRUPTED)
    assert done.returncode == -signal.SIGTERM
    assert started_ticks(int((tmp_path / "checker").read_text())) is None
