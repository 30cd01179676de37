"""A script made for torchrun that logs to TensorBoard every few steps, and knows nothing of Holdfast.

When a file `poison` is there, it takes the file away and its weights are no numbers from then on.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tensorboardX import SummaryWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--poison", type=Path, required=True)
    parser.add_argument("--log-every", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    writer = SummaryWriter(str(args.logs), flush_secs=1) if rank == 0 else None
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    step = 0
    while True:
        step += 1
        x = torch.randn(16, 8, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if writer is not None and step % args.log_every == 0:
            writer.add_scalar("train/loss", loss.item(), step)
            writer.add_scalar("eval/loss", float("nan"), step)
            print(f"step {step} loss: {loss.item()}", flush=True)
        if rank == 0 and args.poison.exists():
            args.poison.unlink()
            (args.logs / f"poisoned-{os.environ['HOLDFAST_GENERATION']}").write_text(str(step))
            with torch.no_grad():
                model.weight.fill_(float("nan"))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
