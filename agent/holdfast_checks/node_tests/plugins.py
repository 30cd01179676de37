"""Custom tests: Python entry points of the group `holdfast.diagnostics`, and executables in a directory.

An entry point is called without arguments. It returns None or a text (passed, with that detail), or raises
AssertionError (the node failed). An executable exits with a Nagios code: 0 passed, 1 passed with a warning, 2 failed, 3
skipped; the first line of its output is the detail.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from holdfast.symptoms import Symptom
from holdfast_checks.result import StageResult, StageTask, broken, failed, passed, skipped

GROUP = "holdfast.diagnostics"
DIRECTORY_VARIABLE = "HOLDFAST_DIAGNOSTICS"
"""Environment variable of the agent: the directory of executables."""
SYMPTOM = Symptom.PLUGIN_FAILED.value


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Run the site's own tests, and report their results; skipped if there are none."""
    begin()
    found = [_call(point) for point in metadata.entry_points(group=GROUP)]
    directory = os.environ.get(DIRECTORY_VARIABLE, "")
    if directory:
        found += _all_in(Path(directory))
    return found or [skipped(f"no entry points of {GROUP}, and {DIRECTORY_VARIABLE} names no directory with programs")]


def _call(point: metadata.EntryPoint) -> StageResult:
    try:
        answer = point.load()()
    except AssertionError as error:
        return failed(SYMPTOM, str(error) or "failed", device=point.name)
    except Exception as error:  # noqa: BLE001 - a plugin's own mistake proves nothing about the node
        return broken(f"{type(error).__name__}: {error}", device=point.name)
    return passed(device=point.name, detail="" if answer is None else str(answer))


def _all_in(directory: Path) -> list[StageResult]:
    try:
        programs = sorted(path for path in directory.iterdir() if path.is_file() and os.access(path, os.X_OK))
    except OSError as error:
        return [broken(f"{DIRECTORY_VARIABLE}={directory}: {error.strerror}")]
    return [_execute(program) for program in programs]


def _execute(program: Path) -> StageResult:
    name = program.name
    print(f"running {program}", flush=True)
    try:
        done = subprocess.run([program], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return broken(f"{program}: {error.strerror}", device=name)
    first_line = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    match done.returncode:
        case 0:
            return passed(device=name, detail=first_line)
        case 1:
            return passed(device=name, detail=f"warning: {first_line}")
        case 2:
            return failed(SYMPTOM, first_line or "failed", device=name)
        case 3:
            return skipped(first_line or "the test could not decide", device=name)
        case code:
            return broken(f"exited with {code}: {first_line}", device=name)
