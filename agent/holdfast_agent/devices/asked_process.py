"""A process that asks a device's library, seen from the agent: it may hang in the driver, or crash with the library."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.node.kernel import stat_fields
from holdfast.node.machine import text
from holdfast_agent.companions.environment import public_environment

KILLED_S = 1.0
"""Time after which a killable process has ended."""

_RUNNABLE = "R"


class LibraryHangs(Exception):
    """The process has not answered in time and waits in the driver; the message gives the kernel function."""


class Starved(Exception):
    """The process has not answered within the limit because it got no processor."""


class AskedProcess:
    """The process that asks. A hanging one is killed; until it dies, no other is started."""

    def __init__(self, command: Sequence[str], source: str) -> None:
        """`source`: what it asks."""
        self._command = tuple(command)
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._hung: subprocess.Popen[bytes] | None = None
        self._hung_at = ""

    def line(self, limit_s: float) -> bytes:
        """Return its answer. Raises LibraryHangs, Starved, or OSError if the process ended."""
        if self._hung is not None:
            try:
                self._hung.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                raise LibraryHangs(self._hung_at) from None
            self._hung = None
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(process) from None
        answer = _line(process.stdout.fileno(), limit_s)
        if answer is None:
            self._give_up(process)
        if not answer:
            raise self._ended(process)
        return answer

    def close(self) -> None:
        """Kill the process without waiting for it, for it may hang."""
        for process in (self._process, self._hung):
            if process is not None:
                process.kill()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=public_environment(os.environ),
            start_new_session=True,
        )
        return self._process

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        state, place = _state(process.pid)
        self._process = None
        process.kill()
        if state == _RUNNABLE:
            self._hung = process
            raise Starved
        self._hung, self._hung_at = process, f"state {state}, in {place or 'a place that may not be read'}"
        raise LibraryHangs(self._hung_at)

    def _ended(self, process: subprocess.Popen[bytes]) -> OSError:
        self._process = None
        code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return OSError(0, f"the process that asks {self._source} ended with {how}")


def _line(descriptor: int, limit_s: float) -> bytes | None:
    """Return one line; b"" at end-of-file; None if none came in time."""
    deadline, read = time.monotonic() + limit_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(descriptor, 1 << 16)
            if not data:
                return b""
            read += data
    return read


def _state(pid: int) -> tuple[str, str]:
    """Return the process's state letter, and its wait channel in the kernel."""
    fields = stat_fields(pid)
    stack = (text(Path(f"/proc/{pid}/stack")) or "").splitlines()
    place = stack[0].split("] ")[-1] if stack else text(Path(f"/proc/{pid}/wchan")) or ""
    return (fields[0] if fields else "?"), place
