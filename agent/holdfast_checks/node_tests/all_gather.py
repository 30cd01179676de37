"""Inter-node all-gather: the devices of two nodes gather each other's data over the training network.

A round consists of pairs; each pair is its own process group, so that no node waits for a third.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from holdfast.engines.checks.pairs import partner as partner_of
from holdfast_checks import groups, numbers
from holdfast_checks.devices import device_of, settle
from holdfast_checks.meeting import PartnerAbsent, await_partner
from holdfast_checks.result import StageResult, StageTask, broken, failed, passed, skipped

CPU_BYTES = 1024 * 1024
GPU_BYTES = 64 * 1024 * 1024
"""Bytes from each device."""
REPEATS = 3
TURNS = 3
"""The fastest repetition counts, because the network is shared."""
SYMPTOM = "network_error"
GPU_SYMPTOM = "infiniband_error"


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Gather data with the partner node of this round, and report whether it arrived unchanged and in time."""
    context = task.context
    partner = partner_of(context.node_rank, task.stage.pairs)
    if partner is None:
        begin()
        return [skipped("has no partner in this round")]
    name = task.present.get(partner, "")
    if not name:
        begin()
        return [broken(f"the node of rank {partner} did not come to the meeting")]
    try:
        store = await_partner(task, partner)
    except PartnerAbsent:
        return [broken(f"{name} did not come", peers=[name])]
    except RuntimeError as error:
        return [broken(f"the store of the run cannot be reached any more: {error}", peers=[name])]
    begin()
    device = device_of(context)
    try:
        rate = _gather(task, partner, store, device)
    except RuntimeError as error:
        symptom = GPU_SYMPTOM if device.type == "cuda" else SYMPTOM
        return [failed(symptom, f"all-gather with {name}: {error}", peers=[name])]
    if isinstance(rate, str):
        return [failed(GPU_SYMPTOM if device.type == "cuda" else SYMPTOM, rate, peers=[name])]
    return [passed(peers=[name], value=rate, unit="GB/s")]


def _gather(task: StageTask, partner: int, store: Store, device: torch.device) -> float | str:
    """Return the rate in GB/s into each device, or a description of wrong data."""
    context = task.context
    ranks = [(node, worker) for node in sorted((context.node_rank, partner)) for worker in range(context.workers)]
    me = ranks.index((context.node_rank, context.worker))
    groups.among_nodes(store, me, len(ranks), task.stage.limit_s, device)
    words = (CPU_BYTES if device.type == "cpu" else GPU_BYTES) // 4
    sent = _part(task, me, words).to(device)
    arrived = torch.empty(len(ranks) * words, dtype=sent.dtype, device=device)
    dist.all_gather_single(arrived, sent)
    wrong = [
        rank for rank in range(len(ranks)) if not torch.equal(arrived[rank * words : (rank + 1) * words].cpu(),
                                                              _part(task, rank, words))
    ]  # fmt: skip
    took_s = min(_turn_s(arrived, sent, device) for _ in range(TURNS))
    if wrong:
        senders = ", ".join(f"device {ranks[rank][1]} of {task.present[ranks[rank][0]]}" for rank in wrong)
        return f"what came from {senders} is not what was sent"
    return REPEATS * context.workers * words * 4 / took_s / 1e9


def _turn_s(arrived: torch.Tensor, sent: torch.Tensor, device: torch.device) -> float:
    dist.barrier()
    settle(device)
    began = time.monotonic()
    for _ in range(REPEATS):
        dist.all_gather_single(arrived, sent)
    settle(device)
    return time.monotonic() - began


def _part(task: StageTask, rank: int, words: int) -> torch.Tensor:
    return numbers.integers(10_000 * task.stage.round + rank, (words,), 1 << 20)
