"""A job whose steps take the same time, and show where it is lost: each rank multiplies matrices, rests, and averages.

Nothing in it knows of Holdfast: its steps are known by its optimizer, its iterations by its collectives.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--products", type=int, default=20)
    parser.add_argument("--rest-s", type=float, default=0.15)
    parser.add_argument("--average-bytes", type=int, default=1 << 16)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    weights = torch.nn.Parameter(torch.zeros(args.average_bytes // 4))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    left = torch.ones((256, 256))
    is_wanted = torch.zeros(1)
    while not is_wanted.item():
        for _ in range(args.products):
            torch.mm(left, left)
        time.sleep(args.rest_s)
        weights.grad = torch.ones_like(weights)
        dist.all_reduce(weights.grad)
        optimizer.step()
        is_wanted.fill_(args.until.exists() and dist.get_rank() == 0)
        dist.all_reduce(is_wanted, op=dist.ReduceOp.MAX)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
