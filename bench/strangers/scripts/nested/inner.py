# type: ignore
"""What the launcher inside starts."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, EVERY = 160, 50

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(9)
net = nn.Linear(16, 16)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
start = 0
if os.path.exists("inner.pt"):
    saved = torch.load("inner.pt")
    start = saved["step"]
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
model = DDP(net)
for step in range(start, STEPS):
    time.sleep(0.02)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 10 + rank))
    loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        with open("log.txt", "a") as file:
            file.write(f"{step} {loss.item()!r}\n")
        if (step + 1) % EVERY == 0:
            state = {"step": step + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "inner.tmp")
            os.replace("inner.tmp", "inner.pt")
dist.destroy_process_group()
