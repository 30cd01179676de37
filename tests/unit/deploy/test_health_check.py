"""deploy/health.sh: what it asks, and when. `holdfast` and `sleep` are programs here that note how they are called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
HEALTH = ROOT / "deploy" / "health.sh"
FIRST = "holdfast ping controller --wait --timeout-s 50"
LATER = ["sleep 29", "holdfast ping controller"]


class Container:
    """A place with the memory that a container has as /dev/shm."""

    def __init__(self, root: Path) -> None:
        self._calls = root / "calls"
        self.memory = root / "shm"
        self.memory.mkdir()
        self._check = root / "health.sh"
        self._check.write_text(HEALTH.read_text().replace("/dev/shm", str(self.memory)))
        for name, says in (("holdfast", "${SAYS:-0}"), ("sleep", "0")):
            program = root / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._calls}\nexit {says}\n')
            program.chmod(0o755)
        self._path = f"{root / 'bin'}:{os.environ['PATH']}"

    def check(self, says: int = 0) -> tuple[int, list[str]]:
        """Return the exit code of a check, and what it called, where `holdfast` ends with `says`."""
        self._calls.write_text("")
        done = subprocess.run(
            ["sh", self._check, "controller"],
            env={"PATH": self._path, "SAYS": str(says)},
            check=False,
            stderr=subprocess.PIPE,
        )
        return done.returncode, self._calls.read_text().splitlines()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_it_waits_for_the_first_answer_and_then_asks_twice_a_minute(container: Container) -> None:
    assert [container.check(says=1), container.check(says=1)] == [(1, [FIRST]), (1, [FIRST])]
    assert container.check() == (0, [FIRST])
    assert [container.check(), container.check(says=1), container.check()] == [(0, LATER), (1, LATER), (0, LATER)]


def test_the_next_start_of_the_container_is_waited_for_again(container: Container) -> None:
    assert container.check() == (0, [FIRST])
    for file in container.memory.iterdir():
        file.unlink()
    assert container.check() == (0, [FIRST])


def test_one_that_has_answered_is_healthy_where_that_cannot_be_noted(container: Container) -> None:
    container.memory.rmdir()
    assert container.check() == (0, [FIRST])


def test_health_checks_ask_nothing_of_an_engine_that_debian_12_does_not_have() -> None:
    """Its Docker is 20.10, which refuses options that it does not know."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    checks = [one["healthcheck"] for one in services if "healthcheck" in one]
    known = {"test", "interval", "timeout", "retries", "start_period"}
    assert len(checks) > 10
    assert not {option for check in checks for option in check} - known
