"""Processes that run Python, forked from one that has imported torch, or Holdfast: most do less than the imports take.

For tests of what a program does, and not of how an interpreter starts it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.embedded.processes import child_process
from holdfast.embedded.servers.identity import Identity

WARM_RANKS = Path(__file__).with_name("warm_ranks.py")
"""`WARM_RANKS RANKS SCRIPT ARGUMENT...` runs ranks of one process group."""
SERVER = Path(__file__).with_name("warm_server.py")
STARTS_WITHIN_S = 60.0

KINDS = ("torch", "holdfast")
shared = dict[str, str]()
"""In a worker: by kind the socket of what the process that has the workers started for all of them."""


@functools.cache
def _server(kind: str) -> Path:
    """Return the socket of the process that forks those of a kind; without workers it is one of this process."""
    asked = Path(shared[kind]) if kind in shared else start_server(kind)
    until = time.monotonic() + STARTS_WITHIN_S
    while not asked.exists():
        log = asked.with_name("warm.log")
        assert time.monotonic() < until, log.read_text() if log.exists() else "it was not started"
        time.sleep(0.01)
    return asked


def start_server(kind: str) -> Path:
    """Start a process that forks those of a kind and ends with this one; return the socket that it will have."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-warm-"))
    asked = place / "warm.sock"
    with (place / "warm.log").open("ab") as log:
        argv = (sys.executable, str(SERVER), str(asked), kind)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment["PYTHONPATH"] = str(SERVER.parents[1])
        process = child_process.start(argv, environment, place, log.fileno(), signal.SIGKILL, Identity.AS_IS)
    atexit.register(_end, process, place)
    return asked


def _end(process: subprocess.Popen[bytes], place: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(place, ignore_errors=True)


class WarmPython(subprocess.Popen[str]):
    """`Popen([sys.executable, ...])`, forked from a process that has torch: its exit code comes over a socket."""

    _kind = "torch"

    def _execute_child(self, args: Sequence[object], *rest: Any) -> None:
        (_, _, _, pass_fds, cwd, env, _, _, _, *files, _, _, _, _, _, start_new_session, _) = rest
        inwards, _, _, outwards, _, errors = files
        program, *arguments = map(str, args)
        assert program == sys.executable, "only Python can be forked"
        streams = {0: inwards, 1: outwards, 2: errors}
        given = {target: target if source == -1 else source for target, source in streams.items()}
        given |= {descriptor: descriptor for descriptor in pass_fds}
        asked = {
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or os.getcwd()),
            "has_session": start_new_session,
            "files": list(given),
        }
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._answer = b""
        try:
            self._link.connect(str(_server(self._kind)))
            data = json.dumps(asked).encode() + b"\n"
            sent = socket.send_fds(self._link, [data], list(given.values()))
            # Sending nothing would fail if the fork has ended already.
            if sent < len(data):
                self._link.sendall(data[sent:])
        finally:
            self._close_pipe_fds(*files)  # type: ignore[attr-defined]
        self.pid = int(self._line(None))
        self._child_created = True

    def _line(self, within_s: float | None) -> bytes:
        """Return the next line of the server. Raises TimeoutError or BlockingIOError."""
        self._link.settimeout(within_s)
        while b"\n" not in self._answer:
            data = self._link.recv(64)
            assert data, "the process that forks has ended"
            self._answer += data
        line, _, self._answer = self._answer.partition(b"\n")
        return line

    def _internal_poll(self, _deadstate: int | None = None, **_: object) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = int(self._line(0.0))
                self._link.close()
            except BlockingIOError:
                return None
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            try:
                self.returncode = int(self._line(timeout))
                self._link.close()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
        return self.returncode


class WarmHoldfast(WarmPython):
    """A `WarmPython` with the command line, the agent and the vault instead of torch."""

    _kind = "holdfast"


def run_warm(
    args: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = True,
    start: type[WarmPython] = WarmPython,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(args, capture_output=True, text=True)` by a `WarmPython`. Raises AssertionError."""
    pipe = subprocess.PIPE
    command = [str(word) for word in args]
    with start(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check and done.returncode:
        raise AssertionError(f"it ended with {done.returncode}:\n{output}{errors}")
    return done
