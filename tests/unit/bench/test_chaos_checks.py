"""The checkers of the soak (`bench/chaos.py`) find what they look for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    path = Path(__file__).parents[3] / "bench" / "chaos_checks.py"
    spec = importlib.util.spec_from_file_location("bench_chaos_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _record(checks: ModuleType) -> list[Any]:
    """A recovery, whole."""
    return [
        checks.Event("1", "evidence", "process_exited", "job", 1, "node-0"),
        checks.Event("2", "decision", "incident_opened", "job", 1, cause="1", incident="i"),
        checks.Event("3", "decision", "generation_started", "job", 2, cause="1", incident="i"),
        checks.Event("4", "action", "ranks_started", "job", 2, "node-0", cause="3"),
        checks.Event("5", "decision", "incident_closed", "job", 2, cause="4", incident="i"),
    ]


def _judged(checks: ModuleType, record: list[Any], sent: str = "12345", requests: str = "") -> list[str]:
    found: list[str] = checks.judge_events(sent, requests, record)
    return found


def test_a_whole_record_has_nothing_wrong(checks: ModuleType) -> None:
    assert _judged(checks, _record(checks)) == []


def test_a_missing_event_is_found(checks: ModuleType) -> None:
    record = [event for event in _record(checks) if event.id != "4"]
    assert _judged(checks, record) == [
        "1 events are missing from the record: 4",
        "1 decisions have a cause that is not in the record: incident_closed 5 (cause 4)",
    ]


def test_a_doubled_event_is_found(checks: ModuleType) -> None:
    record = _record(checks)
    assert _judged(checks, [*record, record[3]])[0] == "1 events are recorded twice: 4"


def test_a_decision_without_a_cause_is_found_and_a_request_is_one(checks: ModuleType) -> None:
    record = _record(checks)
    submitted = checks.Event("6", "decision", "job_submitted", "job", cause="r")
    assert _judged(checks, [*record, submitted], requests="r") == []
    assert "job_submitted 6" in _judged(checks, [*record, submitted])[0]
    assert _judged(checks, [*record, submitted._replace(cause=None)]) == ["1 decisions have no cause: job_submitted 6"]


@pytest.mark.parametrize(
    ("again", "found"),
    [
        (1, "incidents were opened twice"),
        (2, "generations were started twice"),
        (3, "generations ran twice on a node"),
        (4, "incidents were closed twice"),
    ],
)
def test_what_happened_twice_is_found(checks: ModuleType, again: int, found: str) -> None:
    record = _record(checks)
    (violation,) = _judged(checks, [*record, record[again]._replace(id="6")])
    assert found in violation


def test_an_incident_that_was_not_closed_is_found(checks: ModuleType) -> None:
    assert _judged(checks, _record(checks)[:4], "1234") == ["1 incidents were never closed: i"]


def _note(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_lost_steps_and_pauses_are_measured_from_what_ranks_noted(checks: ModuleType, tmp_path: Path) -> None:
    training = checks.Training(tmp_path, 2)
    for rank in range(2):
        _note(tmp_path / f"rank-{rank}", f"10.0 {rank} began -1 -", f"10.5 {rank} restored 0 -")
        _note(tmp_path / f"rank-{rank}", *(f"{10 + step}.0 {rank} step {step} a" for step in range(1, 6)))
    training.read()
    assert (training.step, training.pids, training.pause_s(10.0, 15.5)) == (5, [0, 1], 1.0)

    # Rank 1 did a sixth step, which is lost with the fourth and fifth of both.
    _note(tmp_path / "rank-1", "16.0 1 step 6 a")
    for rank in range(2):
        _note(tmp_path / f"rank-{rank}", f"18.0 {rank + 2} began -1 -", f"18.5 {rank + 2} restored 3 -")
        _note(tmp_path / f"rank-{rank}", *(f"{15 + step}.0 {rank} step {step} a" for step in range(4, 8)))
    training.read()
    assert [(it.rank, it.step, it.lost_steps, it.lost_s) for it in training.restores[2:]] == [
        (0, 3, 2, 1.0),
        (1, 3, 2, 1.0),
    ]
    assert training.step == 7
    assert training.pause_s(15.0, 23.0) == 6.0


def test_a_loss_that_differs_or_is_missing_is_found(checks: ModuleType) -> None:
    expected = [{1: {"a"}, 2: {"b"}, 3: {"c"}}]
    assert checks.judge_losses(expected, expected) == []
    assert checks.judge_losses([{1: {"a"}, 2: {"b", "x"}, 3: {"c"}}], expected) == [
        "1 steps of rank 0 have another loss than undisturbed: 2 (b, x for b)"
    ]
    assert checks.judge_losses([{1: {"a"}, 3: {"c"}}], expected) == ["1 steps of rank 0 were never trained: 2"]


def test_a_process_and_memory_that_were_left_are_found(checks: ModuleType, tmp_path: Path) -> None:
    program = (sys.executable, "-c", "print(flush=True); input()", str(tmp_path))
    left = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # Its command line can be read once it runs.
    assert left.stdout is not None and left.stdout.readline()
    try:
        (found,) = checks.leftovers(tmp_path, [str(tmp_path), "/dev/shm/gone"], None)
        assert f"process {left.pid}" in found and f"shared memory {tmp_path}" in found and "gone" not in found
    finally:
        left.kill()
        left.communicate()
    assert checks.leftovers(tmp_path, [], None) == []
