"""Processes that keep a fault active, found by a mark in their environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from holdfast.faults.fault import FaultRefused, FaultStep
from holdfast.faults.target import TargetProcess

MARK_VARIABLE = "HOLDFAST_FAULT"
READY = b"ready\n"


class Helper(FaultStep, frozen=True, kw_only=True, tag="helper"):
    """`python -m MODULE ARGUMENTS`, which prints "ready" once the fault is active, and runs until it is killed."""

    mark: str
    module: str
    arguments: tuple[str, ...] = ()

    def do(self) -> None:
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", self.module, *self.arguments),
            env=dict(os.environ) | {MARK_VARIABLE: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            if process.stdout.readline() != READY:
                errors = process.stderr.read().decode(errors="replace").strip().splitlines()
                process.wait()
                raise FaultRefused(errors[-1] if errors else f"{self.module} ended with {process.returncode}")
        process.returncode = 0  # The process outlives this command.

    def undo(self) -> None:
        for process in marked(self.mark):
            process.signal(signal.SIGKILL)


def marked(mark: str) -> list[TargetProcess]:
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                is_ours = wanted in file.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if is_ours and (process := TargetProcess.of(int(name))) is not None:
            found.append(process)
    return found
