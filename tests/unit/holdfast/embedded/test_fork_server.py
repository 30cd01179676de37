"""Children that are forked by a process with their imports are what they would be if they were executed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.embedded.processes.fork_server_link import REPLY_WITHIN_S
from tests.unit.holdfast.embedded.fork_scene import STAYS

SCENE = Path(__file__).with_name("fork_scene.py")
PROGRAM = [sys.executable, "-P", "-m", "holdfast_forked", STAYS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def seen(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the supervisor saw of its children; at the end it is killed, and must not leave one behind."""
    # A user's file replaces no module, not even if PYTHONPATH has an empty entry.
    users = tmp_path_factory.mktemp("user")
    (users / "colorsys.py").write_text("1 / 0")
    search = os.environ | {"PYTHONPATH": f"/none{os.pathsep}"}
    # Exit codes are known also where whatever started the supervisor ignores the end of children.
    command = ["env", "--ignore-signal=CHLD", sys.executable, str(SCENE), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=users, env=search) as scene:
        try:
            assert scene.stdout is not None
            answer = json.loads(scene.stdout.readline())
            pidfd = os.pidfd_open(answer["left"])
            yield answer["lives"]
        finally:
            scene.kill()
    assert select.select([pidfd], [], [], 30)[0], "it outlives its supervisor"
    os.close(pidfd)


def test_it_is_shown_and_stopped_like_an_executed_one(seen: dict[str, Any], directory: Path) -> None:
    forked, executed = seen["stays"], seen["has no server"]
    assert forked["arguments"] == PROGRAM
    assert f"PYTHONPATH={directory}" in forked["variables"] and "LONG=" + "x" * 10_000 in forked["variables"]
    assert forked["directory"] == str(directory)
    assert forked["is mine"] and forked["leads a session"]
    assert forked["exit"] == "killed by SIGTERM"
    ready = [line for line in forked["said"] if line.startswith("child ready")]
    assert len(ready) == 1
    assert set(forked["descriptors"]) <= {"0", "1", "2", "3"}, "3 is closed once it is ready"
    same = ("arguments", "name", "directory", "is mine", "leads a session", "exit", "log")
    assert {key: forked[key] for key in same} == {key: executed[key] for key in same}


def test_its_end_is_that_of_an_interpreter(seen: dict[str, Any]) -> None:
    assert seen["leaves"]["exit"] == "exit code 3"
    assert seen["fails"]["exit"] == "exit code 1"
    assert "ZeroDivisionError: division by zero" in seen["fails"]["log"]
    assert "ValueError: embedded null byte" in seen["cannot be set up"]["log"]
    assert seen["is killed"]["exit"] == "killed by SIGSEGV"


def test_it_is_executed_where_it_cannot_be_forked(seen: dict[str, Any]) -> None:
    assert not any("executed" in line for line in seen["stays"]["said"])
    (line,) = [line for line in seen["cannot be imported"]["said"] if "executed" in line]
    assert "No module named 'holdfast.no_such'" in line
    for life, reason, shown in (
        ("is not UTF-8", "not all UTF-8", "{b'ODD'}"),
        ("has no name", "one of its variables has no name", "{b''}"),
    ):
        (line,) = [line for line in seen[life]["said"] if "executed" in line]
        assert reason in line
        assert shown in seen[life]["log"]
    (line,) = [line for line in seen["has no server"]["said"] if "executed" in line]
    assert "the fork server has ended" in line
    assert seen["cannot be imported"]["arguments"] == seen["has no server"]["arguments"] == PROGRAM


def test_a_fork_server_that_has_forked_and_is_stopped_is_not_waited_for_as_long_as_for_imports(
    seen: dict[str, Any],
) -> None:
    assert not any("executed" in line for line in seen["has another server"]["said"])
    (line,) = [line for line in seen["has a stopped server"]["said"] if "executed" in line]
    assert "does not answer" in line
    assert seen["has a stopped server"]["took_s"] < REPLY_WITHIN_S
