"""Memory test: part of the device's free memory is filled with patterns and read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from holdfast.node.proc.machine_memory import memory_of_machine
from holdfast_checks.devices import device_of, name_of
from holdfast_checks.result import StageResult, StageTask, failed, passed, skipped

CPU_BYTES = 16 * 1024 * 1024
GPU_SHARE = 0.8
CPU_SHARE = 0.1
"""Share of the free memory, divided among the workers."""
BLOCK_BYTES = 16 * 1024 * 1024
LEAST_BYTES = 1024 * 1024
PATTERNS = (0x5555555555555555, -0x5555555555555556)
"""Every bit is once 1 and once 0, with opposite neighbours."""


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Test blocks that are all kept until the last is filled, so that each page is distinct."""
    begin()
    device = device_of(task.context)
    wanted = _bytes_of(device, task.context.workers)
    name, symptom = name_of(device, task.context), "gpu_memory_error" if device.type == "cuda" else "memory_error"
    if wanted < LEAST_BYTES:
        return [skipped("no memory is free for it", device=name)]
    words = min(wanted, BLOCK_BYTES) // 8
    blocks = [torch.empty(words, dtype=torch.int64, device=device) for _ in range(wanted // (words * 8))]
    place = torch.arange(words, dtype=torch.int64, device=device)
    for number, pattern in enumerate(PATTERNS):
        for index, block in enumerate(blocks):
            # Each word also contains its address, which finds aliased addresses.
            torch.bitwise_xor(place, pattern ^ (index << 40), out=block)
        for index, block in enumerate(blocks):
            block.bitwise_xor_(place).bitwise_xor_(pattern ^ (index << 40))
            wrong = int(torch.count_nonzero(block))
            if wrong:
                first = int(block.nonzero()[0])
                text = (
                    f"{wrong} words of {words} did not keep pattern {number}, the first is word {first} of block "
                    f"{index}: bits {int(block[first]) & 0xFFFFFFFFFFFFFFFF:#x} are wrong"
                )
                return [failed(symptom, text, device=name)]
    return [passed(device=name, value=len(blocks) * words * 8 / 1e6, unit="MB")]


def _bytes_of(device: torch.device, workers: int) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_SHARE)
    return min(CPU_BYTES, int(memory_of_machine()[0] * CPU_SHARE / workers))
