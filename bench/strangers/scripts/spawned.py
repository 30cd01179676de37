# type: ignore
"""Starts its own ranks by torch.multiprocessing.spawn, as many older scripts do; the launcher sees one process."""

from __future__ import annotations

import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, EVERY, PROCESSES = 160, 50, 2


def worker(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)
    torch.set_num_threads(1)
    torch.manual_seed(9)
    net = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = 0
    if os.path.exists("spawned.pt"):
        saved = torch.load("spawned.pt")
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
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            with open("log.txt", "a") as file:
                file.write(f"{step} {loss.item()!r}\n")
            if (step + 1) % EVERY == 0:
                state = {"step": step + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, "spawned.tmp")
                os.replace("spawned.tmp", "spawned.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(f"{folder}/meeting",), nprocs=PROCESSES)
