"""Tests in processes forked from the node's driver: a test that hangs or crashes ends with its process.

A collective that waits for a dead partner cannot be cancelled from within (gloo's abort does not free it), nor can a
read from a hanging mount. A process can be killed, or abandoned if not even that helps.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from holdfast.node.kernel import die_with_parent, set_process_name
from holdfast_checks.result import StageResult, StageTask

Test = Callable[[StageTask, Callable[[], None]], Sequence[StageResult]]
"""A test's function. It calls the second argument when everything is ready and its own time begins."""

KILLED_MAX_S = 1.0
"""Time to wait for a killed process; one that hangs inside the kernel is abandoned."""


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's message: results, or `error` if its code raised."""

    results: tuple[StageResult, ...] | None = None
    error: str = ""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a worker: with results, or without by error, signal or timeout."""

    worker: int
    took_s: float
    results: tuple[StageResult, ...] = ()
    error: str = ""
    signal: int = 0
    timed_out: bool = False

    @property
    def answered(self) -> bool:
        """True if its test completed."""
        return not (self.error or self.signal or self.timed_out)


class _Worker:
    def __init__(self, task: StageTask, pid: int, pipe: int) -> None:
        self.task = task
        self.pid = pid
        self.pipe = pipe
        self.message = bytearray()
        self.forked = time.monotonic()
        self.began = self.forked
        self.kill_at = self.forked + task.wait_s + task.stage.limit_s

    def take(self, data: bytes) -> None:
        self.message += data
        if data.startswith(b"\n") and self.began == self.forked:
            self.began = time.monotonic()
            self.kill_at = self.began + self.task.stage.limit_s

    def ended(self, status: int | None, *, timed_out: bool) -> WorkerExit:
        body = bytes(self.message).strip()
        took_s = time.monotonic() - self.began
        worker = self.task.context.worker
        if timed_out:
            return WorkerExit(worker=worker, took_s=took_s, timed_out=True)
        try:
            message = msgspec.json.decode(body, type=WorkerMessage)
        except msgspec.DecodeError:
            code = os.waitstatus_to_exitcode(status) if status is not None else 0
            error = "" if code < 0 else f"its process ended with exit code {code} without a result"
            return WorkerExit(worker=worker, took_s=took_s, signal=max(0, -code), error=error)
        return WorkerExit(worker=worker, took_s=took_s, results=message.results or (), error=message.error)


def run(test: Test, tasks: Sequence[StageTask]) -> list[WorkerExit]:
    """Run a test in one process for each task, in parallel; each is killed at its time limit."""
    selector = selectors.DefaultSelector()
    running: dict[int, _Worker] = {}
    for task in tasks:
        worker = _start(test, task)
        running[worker.pipe] = worker
        selector.register(worker.pipe, selectors.EVENT_READ)
    ended: list[WorkerExit] = []
    while running:
        first = min(worker.kill_at for worker in running.values())
        ready = [key.fd for key, _ in selector.select(max(0.0, first - time.monotonic()))]
        over = [(pipe, False) for pipe in ready if not _read(running[pipe])]
        now = time.monotonic()
        over += [
            (pipe, True) for pipe, worker in running.items() if now >= worker.kill_at and (pipe, False) not in over
        ]
        for pipe, timed_out in over:
            selector.unregister(pipe)
            worker = running.pop(pipe)
            ended.append(worker.ended(_end(worker), timed_out=timed_out))
    selector.close()
    return sorted(ended, key=lambda end: end.worker)


def _start(test: Test, task: StageTask) -> _Worker:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(test, task, parent, writing)
    os.close(writing)
    return _Worker(task, pid, reading)


def _work(test: Test, task: StageTask, parent: int, pipe: int) -> NoReturn:
    """Run the test in the child; never returns."""
    try:
        die_with_parent(parent)
        # Its own group: processes that it starts are killed with it.
        os.setpgid(0, 0)
        set_process_name(f"check-{task.stage.test}")
        try:
            results = tuple(test(task, lambda: _write(pipe, b"\n")))
            message = WorkerMessage(results=results)
        except BaseException as error:  # noqa: BLE001 - whatever ends a test is its result
            traceback.print_exc()
            message = WorkerMessage(error=f"{type(error).__name__}: {error}")
        _write(pipe, msgspec.json.encode(message))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of a communication library that still wait for a partner must not delay the exit.
        os._exit(0)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _read(worker: _Worker) -> bool:
    """Read the worker's output; return False at its end."""
    data = os.read(worker.pipe, 1 << 16)
    worker.take(data)
    return bool(data)


def _end(worker: _Worker) -> int | None:
    """Kill the rest of the worker's group; return its wait status, None if it cannot be ended."""
    os.close(worker.pipe)
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        # It has not entered its own group yet, or is a zombie already.
        os.kill(worker.pid, signal.SIGKILL)
    give_up = time.monotonic() + KILLED_MAX_S
    while time.monotonic() < give_up:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    return None
