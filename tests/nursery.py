"""A nursery for the agents that tests start: torch is imported once per run instead of once per zygote.

Clusters of tests share it too. A test that is about how an agent starts its zygote itself takes `HOLDFAST_NURSERY` out
of the environment.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.daemon.ready import READY_FD_VARIABLE
from holdfast.embedded.processes.child_process import start
from holdfast.embedded.servers.identity import Identity
from tests.warm_python import shared

NURSERY = "nursery"
_OF_TEST_OR_WORKER = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_", "COLUMNS", "LINES", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that differ from test to test, or between workers and what started them, to which readline gives the size
of a terminal and torch a place for its compiler: an agent with them differs from every nursery."""


def public_environment() -> dict[str, str]:
    """Return this process's environment, for agents and the nursery."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_TEST_OR_WORKER)}


def start_nursery(socket: Path, log: Path, given: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a nursery, which dies with this process; return when agents may ask, and then wait for its imports."""
    argv = (sys.executable, "-P", "-m", "holdfast_agent.zygote.nursery", "--socket", str(socket))
    ready, ready_in = os.pipe()
    try:
        with log.open("ab") as output:
            environment = {**given, READY_FD_VARIABLE: str(ready_in)}
            process = start(
                argv, environment, Path.cwd(), output.fileno(), signal.SIGKILL, Identity.AS_IS, keep=(ready_in,)
            )
    finally:
        os.close(ready_in)
    with open(ready, "rb") as pipe:
        assert pipe.read(), f"the nursery does not start:\n{log.read_text()}"
    return process


_AT_IMPORT = public_environment()
"""The environment before any test or fixture has changed it."""


@functools.cache
def worker_nursery() -> Path:
    """Return the socket of the nursery of all workers. Without workers it is started here when it is first needed."""
    if NURSERY in shared:
        return Path(shared[NURSERY])
    place = Path(tempfile.mkdtemp(prefix="holdfast-nursery-"))
    process = start_nursery(place / "nursery.sock", place / "nursery.log", _AT_IMPORT)
    atexit.register(_end, process, place)
    return place / "nursery.sock"


def _end(process: subprocess.Popen[bytes], place: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def environment_at_start() -> dict[str, str]:
    """The environment before any test or other fixture of this kind has changed it."""
    return dict(_AT_IMPORT)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Path]:
    """The log of a nursery that all agents of tests ask."""
    socket = worker_nursery()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(NURSERY_VARIABLE, str(socket))
        yield socket.with_suffix(".log")
