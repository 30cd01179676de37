"""`.ci/run` fails if any part of it does, shows what failed, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
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
CHECKER = """echo $$ >"$PLACE/checker.new"; mv "$PLACE/checker.new" "$PLACE/checker"; exec sleep 1000"""
INTERRUPTED = f"""#!/bin/sh
case "$*" in
*check-mypy*) {CHECKER} ;;
*test*) until [ -e "$PLACE/checker" ]; do sleep 0.01; done; KILL ;;
esac
"""


def _run(place: Path, fails: str = "", **programs: str) -> subprocess.CompletedProcess[str]:
    """Run it with these programs in place of those that it calls."""
    for name, text in programs.items():
        program = place / name
        program.write_text(text)
        program.chmod(0o755)
    (place / "tmp").mkdir()
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "PLACE": str(place), "FAILS": fails}
    environment["TMPDIR"] = str(place / "tmp")
    # Tests may run in the background, where shells have SIGINT ignored, and the signals are for this script's group.
    command = ["env", "--default-signal=INT", CI]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60, start_new_session=True
    )


@pytest.fixture
def checker(tmp_path: Path) -> Iterator[Callable[[], bool]]:
    """Return a function that returns True if the program that checks types still runs."""

    def runs() -> bool:
        return started_ticks(int((tmp_path / "checker").read_text())) is not None

    yield runs
    if (tmp_path / "checker").exists() and runs():
        os.kill(int((tmp_path / "checker").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("fails", ["", "setup", "check-style", "check-imports", "check-mypy", "check-pyright", "test"])
def test_a_failure_of_any_part_is_shown_and_fails_the_whole(tmp_path: Path, fails: str) -> None:
    done = _run(tmp_path, fails, make=MAKE)
    assert (done.returncode != 0) == bool(fails), done
    assert (f"{fails} failed" in done.stdout) == bool(fails)
    assert not list((tmp_path / "tmp").iterdir())
    made = (tmp_path / "made").read_text().split()
    if fails in ("", "check-pyright", "test"):
        assert sorted(made) == ["check-imports", "check-mypy", "check-pyright", "check-style", "setup", "test"]
    assert ("test" in made) == (fails not in ("setup", "check-style", "check-imports")), "they cost minutes"


@pytest.mark.parametrize(
    ("kill", "number"),
    [
        pytest.param("kill -TERM $PPID", signal.SIGTERM, id="the script alone"),
        pytest.param("kill -TERM 0", signal.SIGTERM, id="its group"),
        pytest.param("kill -INT 0", signal.SIGINT, id="Ctrl+C"),
    ],
)
def test_an_interruption_leaves_no_check_of_types_and_no_file(
    tmp_path: Path, checker: Callable[[], bool], kill: str, number: int
) -> None:
    done = _run(tmp_path, make=INTERRUPTED.replace("KILL", kill))
    assert done.returncode == -number
    assert not checker()
    assert not list((tmp_path / "tmp").iterdir())


def test_an_interruption_also_ends_a_check_of_types_that_has_no_group_yet(
    tmp_path: Path, checker: Callable[[], bool]
) -> None:
    setsid = f"#!/bin/sh\n{CHECKER}\n"
    done = _run(tmp_path, make=INTERRUPTED.replace("KILL", "kill -TERM $PPID"), setsid=setsid)
    assert done.returncode == -signal.SIGTERM
    assert not checker()
    assert not list((tmp_path / "tmp").iterdir())
