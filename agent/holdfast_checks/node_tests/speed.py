"""Matrix multiplication rate by wall-clock time, as a job that waits for the device experiences it.

The median of several turns counts: a brief disturbance is not in most of them, while a throttled device or a processor
with too little time is slow in each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from holdfast_checks.devices import be_exact, device_of, hardware_of, name_of, settle
from holdfast_checks.result import StageResult, StageTask, passed

CPU_SIZE, GPU_SIZE = 256, 4096
TURNS = 8
TURN_S = 0.2
"""Longer than the period in which the kernel gives a control group its processor share."""


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Report the rate of matrix products on the worker's device, in GFLOP/s of wall-clock time (median of some
    turns)."""
    be_exact()
    begin()
    device = device_of(task.context)
    size = CPU_SIZE if device.type == "cpu" else GPU_SIZE
    left = torch.ones((size, size), device=device)
    out = torch.empty_like(left)
    torch.mm(left, left, out=out)
    settle(device)
    usual = statistics.median(_rate(left, out, device) for _ in range(TURNS))
    name, hardware = name_of(device, task.context), hardware_of(device)
    return [passed(device=name, value=usual, unit="GFLOP/s", hardware=hardware)]


def _rate(left: torch.Tensor, out: torch.Tensor, device: torch.device) -> float:
    """Return the GFLOP/s of one turn."""
    began, done = time.monotonic(), 0
    while (took_s := time.monotonic() - began) < TURN_S:
        torch.mm(left, left, out=out)
        settle(device)
        done += 1
    return 2.0 * len(left) ** 3 * done / took_s / 1e9
