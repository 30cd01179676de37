"""GPUs by NVML or amdsmi in a separate process: lost GPUs, a hanging driver, heat, memory, PCIe, the fabric manager."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.node.machine import text
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.companions.environment import public_environment
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable
from holdfast_agent.inspections.node_hardware import Gpus
from holdfast_agent.inspections.sources.gpu_report import AMD, NVIDIA, GpuReport, Known, reading_of

_ROOM = "holdfast_agent.inspections.sources"
PROBES = {
    NVIDIA: (sys.executable, "-P", "-m", f"{_ROOM}.gpu_probe"),
    AMD: (sys.executable, "-P", "-m", f"{_ROOM}.amd.probe"),
}

KILLED_S = 1.0
"""Time after which a killable process has ended."""

_RUNNABLE = "R"


class ProbeHangs(Exception):
    """The NVML process has not answered in time and waits in the driver; the message gives the kernel function."""


class ProbeStarved(Exception):
    """The NVML process has not answered within the limit because it got no processor."""


class GpuProbe:
    """The process that asks. A hanging one is killed; until it dies, no other is started."""

    def __init__(self, command: Sequence[str] = (), source: str = NVIDIA) -> None:
        """`source`: what it asks. `command`: another process in its place."""
        self._command = tuple(command) or PROBES[source]
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._hung: subprocess.Popen[bytes] | None = None
        self._hung_at = ""

    def ask(self, limit_s: float) -> GpuReport:
        """Return the answer. Raises ProbeHangs, ProbeStarved, or OSError if the process ended."""
        if self._hung is not None:
            try:
                self._hung.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                raise ProbeHangs(self._hung_at) from None
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
        return msgspec.json.decode(answer, type=GpuReport)

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
            raise ProbeStarved
        self._hung, self._hung_at = process, f"state {state}, in {place or 'a place that may not be read'}"
        raise ProbeHangs(self._hung_at)

    def _ended(self, process: subprocess.Popen[bytes]) -> OSError:
        self._process = None
        code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return OSError(0, f"the process that asks {self._source} ended with {how}")


class GpuInspection:
    """Reads the report and compares it with what is known of the GPUs."""

    def __init__(self, policy: InspectionPolicy, gpus: Gpus, probe: GpuProbe | None = None) -> None:
        self._policy = policy
        self._gpus = gpus
        self.source = AMD if gpus.are_amds else NVIDIA
        self._probe = probe or GpuProbe(source=self.source)
        self._known = Known(wanted=gpus.own if gpus.are_divided else None)

    def read(self) -> Reading:
        if not self._gpus.own:
            hidden = bool(self._gpus.of_machine)
            return Reading(absent="no GPU is this node's" if hidden else "no GPU on the PCI bus")
        try:
            report = self._probe.ask(self._policy.gpu_hang_s)
        except ProbeHangs as error:
            detail = (
                f"the driver has not answered for {self._policy.gpu_hang_s:g} s: the process that asks it is in {error}"
            )
            return Reading(troubles=(Trouble(kind="hang", detail=detail, confidence="evict"),))
        except ProbeStarved:
            return unreadable(f"the process that asks {self.source} got no processor for {self._policy.gpu_hang_s:g} s")
        now_s = time.monotonic()
        reading = reading_of(report, self._known, now_s, self._policy)
        self._known = self._known.with_(report, now_s)
        return reading

    def close(self) -> None:
        self._probe.close()


def gpu_check(policy: InspectionPolicy, inspection: GpuInspection) -> Check:
    return Check(
        name="gpu",
        source=inspection.source,
        read=inspection.read,
        interval_s=policy.gpu_s,
        # The probe's own limit comes first: it tells a hanging driver from a busy machine.
        limit_s=policy.gpu_hang_s + 10,
        symptom=Symptom.GPU_UNAVAILABLE,
    )


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
    stat = text(Path(f"/proc/{pid}/stat")) or ""
    state = stat.rpartition(")")[2].split()
    stack = (text(Path(f"/proc/{pid}/stack")) or "").splitlines()
    place = stack[0].split("] ")[-1] if stack else text(Path(f"/proc/{pid}/wchan")) or ""
    return (state[0] if state else "?"), place
