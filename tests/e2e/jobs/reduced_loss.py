"""A data-parallel training that reports one loss for all ranks, on machines of which one may compute wrongly.

`--bad-node FILE` has the name of a node, once it is there: each gradient that is computed there has a NaN then, which
the exchange of gradients takes to all ranks. It trains until `--until` exists, and keeps every step in memory.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer

WIDTH, BATCH, STEP_S = 32, 8, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bad-node", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(WIDTH, WIDTH)
    model.weight.register_hook(lambda gradient: gradient * torch.nan if is_here(args.bad_node) else gradient)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    checkpointer = Checkpointer()
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    step, is_over = checkpointer.restore(state), torch.zeros(1)
    while not is_over:
        step += 1
        chance = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        inputs = torch.randn(BATCH, WIDTH, generator=chance)
        loss = torch.nn.functional.mse_loss(parallel(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        trainer.step(step, loss=mean / dist.get_world_size())
        checkpointer.keep(step, state)
        if trainer.replay() is None:
            time.sleep(STEP_S)
        is_over.fill_(args.until.exists())
        dist.broadcast(is_over, 0)


def is_here(bad_node: Path) -> bool:
    try:
        return bad_node.read_text() == os.environ["HOLDFAST_NODE"]
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
