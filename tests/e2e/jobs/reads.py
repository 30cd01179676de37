"""A training that reads a file at its start, as a data loader does, and trains until `--until` exists."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--reads", type=Path, required=True)
parser.add_argument("--until", type=Path, required=True)
options = parser.parse_args()
tokens = options.reads.read_text()
dist.init_process_group("gloo")
weight = torch.zeros(len(tokens), requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
done = torch.zeros(1)
while not done.item():
    optimizer.zero_grad()
    (weight.sum() ** 2).backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    done = torch.tensor([float(dist.get_rank() == 0 and options.until.exists())])
    dist.broadcast(done, 0)
    time.sleep(0.02)
