"""Tests run in processes of their own, forked from the node's driver: what hangs or crashes there ends with them.

A collective that waits for a dead partner cannot be called off from within (gloo's abort does not free it), nor can a
read from a mount that hangs; a process can be killed, or left behind where not even that helps.
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
"""A test's code; it calls the second argument when all that it needs is there and its own time begins."""

KILLED_MAX_S = 1.0
"""How long a killed process is waited for; one that hangs inside the kernel is left behind."""


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line from a worker: it has begun, or what it found; `error` if its code raised."""

    findings: tuple[StageResult, ...] | None = None
    error: str = ""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended: with findings, or without them in one of three ways."""

    worker: int
    took_s: float
    findings: tuple[StageResult, ...] = ()
    error: str = ""
    signal: int = 0
    timed_out: bool = False

    @property
    def answered(self) -> bool:
        """Its test came to an end."""
        return not (self.error or self.signal or self.timed_out)


class _Worker:
    def __init__(self, task: StageTask, pid: int, pipe: int) -> None:
        self.task = task
        self.pid = pid
        self.pipe = pipe
        self.said = bytearray()
        self.forked = time.monotonic()
        self.began = self.forked
        self.kill_at = self.forked + task.wait_s + task.stage.limit_s

    def take(self, data: bytes) -> None:
        self.said += data
        if data.startswith(b"\n") and self.began == self.forked:
            self.began = time.monotonic()
            self.kill_at = self.began + self.task.stage.limit_s

    def ended(self, status: int | None, *, timed_out: bool) -> WorkerExit:
        body = bytes(self.said).strip()
        took_s = time.monotonic() - self.began
        worker = self.task.context.worker
        if timed_out:
            return WorkerExit(worker=worker, took_s=took_s, timed_out=True)
        try:
            said = msgspec.json.decode(body, type=WorkerMessage)
        except msgspec.DecodeError:
            code = os.waitstatus_to_exitcode(status) if status is not None else 0
            error = "" if code < 0 else f"its process ended with exit code {code} and without a word"
            return WorkerExit(worker=worker, took_s=took_s, signal=max(0, -code), error=error)
        return WorkerExit(worker=worker, took_s=took_s, findings=said.findings or (), error=said.error)


def run(test: Test, tasks: Sequence[StageTask]) -> list[WorkerExit]:
    """Run a test in one process for each task, side by side; each is killed when its time is over."""
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
    """The child's side."""
    try:
        die_with_parent(parent)
        # A group of its own: what it starts is killed with it.
        os.setpgid(0, 0)
        set_process_name(f"check-{task.stage.test}")
        try:
            findings = tuple(test(task, lambda: _say(pipe, b"\n")))
            said = WorkerMessage(findings=findings)
        except BaseException as error:  # noqa: BLE001 - whatever ends a test is its result
            traceback.print_exc()
            said = WorkerMessage(error=f"{type(error).__name__}: {error}")
        _say(pipe, msgspec.json.encode(said))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of a communication library that still wait for a partner must not keep it.
        os._exit(0)


def _say(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _read(worker: _Worker) -> bool:
    """Take what it said; False at its end."""
    data = os.read(worker.pipe, 1 << 16)
    worker.take(data)
    return bool(data)


def _end(worker: _Worker) -> int | None:
    """Kill what is left of it; its wait status, None if it cannot be ended."""
    os.close(worker.pipe)
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        # It has not come to its own group yet, or is a zombie already.
        os.kill(worker.pid, signal.SIGKILL)
    give_up = time.monotonic() + KILLED_MAX_S
    while time.monotonic() < give_up:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    return None
