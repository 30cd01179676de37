"""A job whose steps take the same time, and show where it is lost: each rank multiplies matrices, rests, and averages.

Nothing in it knows of Holdfast, unless it keeps its state: its steps are known by its optimizer, its iterations by its
collectives.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.trainer.checkpoint import Checkpointer

LAG_S = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--products", type=int, default=20)
    parser.add_argument("--rest-s", type=float, default=0.15)
    parser.add_argument("--average-bytes", type=int, default=1 << 16)
    parser.add_argument("--laggard", type=int, help="this rank multiplies for a second and a half more")
    parser.add_argument("--ddp", action="store_true", help="no collective but those that DDP begins by itself")
    parser.add_argument("--keeps", action="store_true", help="keep each step in memory: a restart can go on from it")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    layer = torch.nn.Linear(args.average_bytes // 4, 1, bias=False)
    model = DistributedDataParallel(layer) if args.ddp else layer
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    left = torch.ones((256, 256))
    lag_s = LAG_S if dist.get_rank() == args.laggard else 0.0
    state, step = {"layer": layer}, 0
    checkpointer = Checkpointer() if args.keeps else None
    if checkpointer:
        step = checkpointer.restore(state)
    is_over = False
    while not is_over:
        began = time.monotonic()
        for _ in range(args.products):
            torch.mm(left, left)
        while time.monotonic() - began < lag_s:
            torch.mm(left, left)
        time.sleep(args.rest_s)
        is_wanted = args.until.exists() and dist.get_rank() == 0
        optimizer.zero_grad()
        model(torch.full((1, layer.in_features), float(is_wanted))).sum().backward()
        gradient = layer.weight.grad
        assert gradient is not None
        if not args.ddp:
            dist.all_reduce(gradient)
        # What rank 0 feeds is in everybody's gradient.
        is_over = bool(gradient[0, 0] > 0)
        optimizer.step()
        step += 1
        if checkpointer:
            checkpointer.keep(step, state)
    # The group stays: where DDP is its last holder, this release of torch may wait for ever for one of its own threads.


if __name__ == "__main__":
    main()
