"""Intra-node all-to-all: the devices of a node exchange data, GPUs by NCCL and CPU workers by gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from holdfast.symptoms import Symptom
from holdfast_checks import groups, numbers
from holdfast_checks.devices import device_of, hardware_of, name_of, settle
from holdfast_checks.result import StageResult, StageTask, WorkerContext, failed, passed, skipped

CPU_BYTES = 1024 * 1024
GPU_BYTES = 64 * 1024 * 1024
"""Bytes from each device to each other."""
REPEATS = 5
SYMPTOMS = {"cuda": Symptom.NCCL_INTERNAL_ERROR.value, "cpu": Symptom.NETWORK_ERROR.value}


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Compare the received data with what was sent, then measure the rate."""
    begin()
    context = task.context
    device = device_of(context)
    name, symptom = name_of(device, context), SYMPTOMS[device.type]
    if context.workers < 2:
        return [skipped("the node has one device")]
    words = (CPU_BYTES if device.type == "cpu" else GPU_BYTES) // 4
    try:
        groups.among_workers(context, f"{task.stage.test}-{task.stage.round}", task.stage.limit_s, device)
        sent = torch.cat([_part(context.worker, other, words) for other in range(context.workers)]).to(device)
        arrived = torch.empty_like(sent)
        dist.all_to_all_single(arrived, sent)
        wrong = [other for other in range(context.workers) if not _is_right(context, other, arrived, words)]
        dist.barrier()
        settle(device)
        began = time.monotonic()
        for _ in range(REPEATS):
            dist.all_to_all_single(arrived, sent)
        settle(device)
        took_s = time.monotonic() - began
    except RuntimeError as error:
        return [failed(symptom, f"all-to-all within the node: {error}", device=name)]
    if wrong:
        return [failed(symptom, f"what came from {_names(wrong)} is not what was sent", device=name)]
    # Bytes that this device sends to all others in a second; as many come.
    rate = REPEATS * (context.workers - 1) * words * 4 / took_s / 1e9
    return [passed(device=name, value=rate, unit="GB/s", hardware=hardware_of(device))]


def _part(sender: int, receiver: int, words: int) -> torch.Tensor:
    return numbers.integers(1000 * sender + receiver, (words,), 1 << 20)


def _is_right(context: WorkerContext, sender: int, arrived: torch.Tensor, words: int) -> bool:
    part = arrived[sender * words : (sender + 1) * words].cpu()
    return torch.equal(part, _part(sender, context.worker, words))


def _names(workers: list[int]) -> str:
    return "device " + ", ".join(map(str, workers))
