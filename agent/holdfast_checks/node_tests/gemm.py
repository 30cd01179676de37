"""GEMM burn: the device multiplies matrices without a pause, and every result is verified.

Two kinds, each in every data type used in training. Small whole numbers: no sum is rounded, so integer arithmetic gives
the exact result on any hardware. Random numbers: all results must equal the first bit for bit, and those of other nodes
with equal hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast.symptoms import Symptom
from holdfast_checks import numbers
from holdfast_checks.devices import be_exact, device_of, hardware_of, name_of, settle
from holdfast_checks.result import StageResult, StageTask, failed, passed

CPU_SIZE = 256
GPU_SIZE = 4096
KINDS = (torch.float32, torch.bfloat16)
FLOAT32_LARGEST = 63
"""4096 products of two such numbers stay below 2^24: float32 sums hold them exactly."""
SYMPTOM = Symptom.SILENT_DATA_CORRUPTION.value


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Burn for `burn_s`."""
    be_exact()
    begin()
    device = device_of(task.context)
    name, size = name_of(device, task.context), CPU_SIZE if device.type == "cpu" else GPU_SIZE
    digests: list[torch.Tensor] = []
    operations, busy_s = 0, 0.0
    for number, kind in enumerate(KINDS):
        wrong = _exactly(kind, size, device, seed=2 * number)
        if wrong:
            return [failed(SYMPTOM, wrong, device=name)]
        left = numbers.uniform(100 + number, (size, size)).to(device, kind)
        right = numbers.uniform(200 + number, (size, size)).to(device, kind)
        first = torch.matmul(left, right)
        digests.append(first)
        end = time.monotonic() + task.context.burn_s / len(KINDS)
        while time.monotonic() < end:
            began = _seconds(device)
            again = torch.matmul(left, right)
            settle(device)
            busy_s += _seconds(device) - began
            operations += 2 * size**3
            if not torch.equal(again.view(_integers(kind)), first.view(_integers(kind))):
                return [failed(SYMPTOM, _difference(again, first, kind), device=name)]
    return [
        passed(
            device=name,
            value=operations / busy_s / 1e9 if busy_s else None,
            unit="GFLOP/s",
            digest=numbers.digest(*digests),
            hardware=hardware_of(device),
        )
    ]


def _exactly(kind: torch.dtype, size: int, device: torch.device, seed: int) -> str:
    """Return the difference from integer arithmetic; "" if there is none."""
    left, right = (_whole(kind, size, seed + place) for place in (0, 1))
    found = torch.matmul(left.to(device, kind), right.to(device, kind)).to("cpu", torch.float64).numpy()
    broken_up = found != np.rint(found)
    # Verified by one weighted sum for each row: the whole product would take the CPU longer than the burn.
    weights = 1.0 + numbers.bits(seed + 50, size).astype(np.uint8) % 7
    expected = left.double().numpy() @ (right.double().numpy() @ weights)
    wrong = np.nonzero((found @ weights != expected) | broken_up.any(axis=1))[0]
    if not len(wrong):
        return ""
    return f"{len(wrong)} of {size} rows of a product of whole numbers ({kind}) are wrong, the first is row {wrong[0]}"


def _whole(kind: torch.dtype, size: int, seed: int) -> torch.Tensor:
    """Return whole numbers [size, size] whose sums of products fit the significand in any order of addition."""
    if kind is torch.float32:
        return numbers.integers(seed, (size, size), FLOAT32_LARGEST)
    # 8 bits hold whole numbers up to 256: of -1, 0 and 1 at most that many products are not 0.
    kept = numbers.uniform(seed + 70, (size, size)).abs() < (256 / size) ** 0.5
    some: torch.Tensor = numbers.integers(seed, (size, size), 1) * kept
    return some


def _difference(again: torch.Tensor, first: torch.Tensor, kind: torch.dtype) -> str:
    differ = (again.view(_integers(kind)) != first.view(_integers(kind))).nonzero().cpu()
    row, column = differ[0].tolist()
    return (
        f"the same product ({kind}) came out differently in {len(differ)} elements, the first at [{row}, {column}]: "
        f"{again[row, column].item():.9g}, before {first[row, column].item():.9g}"
    )


def _integers(kind: torch.dtype) -> torch.dtype:
    return torch.int32 if kind is torch.float32 else torch.int16


def _seconds(device: torch.device) -> float:
    """Return the clock of a device's work: on the CPU the worker's CPU time, so that other load does not count."""
    return time.monotonic() if device.type == "cuda" else time.process_time()
