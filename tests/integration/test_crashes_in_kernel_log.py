"""The kernel names each process that crashes, and its file: no user can break a machine by such a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.node_hardware import Gpus, HardwareFinder
from holdfast_agent.inspections.sources.kernel_log import KernelLog

pytestmark = pytest.mark.integration

CRASHES = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0); ctypes.string_at(0)"
NAMES = ("EDAC a: 9 UE x", "kernel BUG at", "Oops: 0000 [#1]")


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log cannot be read")
def test_no_process_that_crashes_breaks_the_machine_by_its_name() -> None:
    machine, gpus = Machine(), Gpus(of_machine=frozenset(), own=frozenset(), are_divided=True)
    log = KernelLog(machine, HardwareFinder(machine, InspectionPolicy(), gpus, lambda: (), lambda: ()))
    log.read()
    printed = set()
    for name in NAMES:
        crashed = subprocess.run([sys.executable, "-c", CRASHES, name], check=False)
        assert crashed.returncode == -signal.SIGSEGV
        lines = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
        printed |= {line for line in lines if name in line}
    if not printed:
        pytest.skip("this kernel prints no crashes of processes (debug.exception-trace)")
    assert [it.kind for it in log.read().troubles if it.kind in ("oops", "memory", "machine check")] == []
    log.close()
