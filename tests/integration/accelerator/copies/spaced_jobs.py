"""Ranks whose device waits for the copies of a step, as its link is slow beside what a step computes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from holdfast.trainer.checkpoint import Checkpointer
from holdfast.trainer.checkpoint.pace.rank_pace import SHARE_VARIABLE
from holdfast.trainer.checkpoint.pace.spacing import WINDOW
from holdfast.trainer.device import copies as copies_module
from holdfast.trainer.device.copies import DeviceCopies
from tests import accelerator
from tests.integration.accelerator.copies.kept_jobs import variables_of
from tests.integration.accelerator.copies.kept_steps import SIZES

NBYTES = 1 << 20
TENSORS = 2
COMPUTE_S = 0.015


class Trained(NamedTuple):
    start: int
    """The step that was restored."""
    kept: list[int]
    every: int
    step_s: float
    """Of the last window."""


def train(
    directory: Path,
    generation: int,
    until: int,
    links: tuple[float, ...],
    share: str = "",
    compute_s: float = COMPUTE_S,
) -> Trained:
    """Restore and train up to a step. `links`: bytes in a second of each rank's; `share`: the limit."""
    small = partial(DeviceCopies, sizes=SIZES)
    with (
        mock.patch.dict("os.environ", {**variables_of(directory, generation), SHARE_VARIABLE: share}),
        mock.patch.object(copies_module, "DeviceCopies", small),
    ):
        accelerator.bandwidth(links[dist.get_rank() if dist.is_initialized() else 0])
        accelerator.slice_bytes(64 << 10)
        parameters = [nn.Parameter(torch.zeros(NBYTES // 4, device="sim")) for _ in range(TENSORS)]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        state = {"parameters": nn.ParameterList(parameters), "optimizer": optimizer}
        checkpointer = Checkpointer()
        start, copies = checkpointer.restore(state), checkpointer._memory._copies
        assert copies is not None
        kept, took = list[int](), list[float]()
        for step in range(start + 1, until + 1):
            began = time.monotonic()
            _train_step(parameters, optimizer, compute_s)
            if checkpointer.keep(step, state):
                kept.append(step)
            took.append(time.monotonic() - began)
        assert copies.wait_sealed(60)
        copies.close()
        return Trained(start, kept, checkpointer._pace.every, median(took[-WINDOW:]))


def _train_step(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, compute_s: float) -> None:
    stream = torch.accelerator.current_stream()
    with accelerator.held(stream):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        time.sleep(compute_s)
    stream.synchronize()
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))
    # Its hook has the device wait for the copies.
    optimizer.step()
    stream.synchronize()
