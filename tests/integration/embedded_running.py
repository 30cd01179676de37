"""Handling an embedded cluster that runs in a process of its own."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.embedded.control import ChildStatus, Status, ask
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.node.kernel import started_ticks
from tests.warm_python import WarmHoldfast

CLUSTER = str(Path(__file__).with_name("embedded_cluster.py"))


class Cluster:
    """A supervisor in a process of its own, started through the command `prefix`."""

    def __init__(self, directory: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self.layout = ClusterLayout(directory)
        start: type[subprocess.Popen[str]] = subprocess.Popen if prefix else WarmHoldfast
        self.process = start(
            [*prefix, sys.executable, CLUSTER, str(directory), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until_ready(self) -> "Cluster":
        self.until_line("READY")
        return self

    def until_line(self, wanted: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if wanted in line:
                return
        pytest.fail(f"the supervisor ended before it said {wanted!r}: {self.lines}")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        output, _ = self.process.communicate(timeout=100)
        self.lines += output.splitlines()
        return self.process.returncode

    @property
    def info(self) -> ClusterInfo:
        return ClusterInfo.load(self.layout.root)

    def child(self, name: str) -> ChildStatus:
        return next(child for child in ask(self.layout, Status()).children if child.name == name)

    def mended(self, name: str, killed: int) -> ChildStatus:
        """Wait until a child runs again as another process than the one killed."""
        until(lambda: (now := self.child(name)).pid != killed and now.state == "ready")
        return self.child(name)

    def pid(self, name: str) -> int:
        pid = self.child(name).pid
        assert pid is not None
        return pid


@contextlib.contextmanager
def cluster(directory: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Cluster]:
    started = Cluster(directory, *arguments, prefix=prefix)
    try:
        yield started.until_ready()
    finally:
        if started.process.poll() is None:
            started.end()


def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, "the condition did not come true in time"
        # Looking takes from those who are looked at: at most a quarter of the time.
        time.sleep(max(0.01, 3 * (time.monotonic() - began)))


def alive(pid: int) -> bool:
    return started_ticks(pid) is not None
