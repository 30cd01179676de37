# type: ignore
"""A GAN: two optimizers, two critic steps for each of the generator, accumulated gradients, a checkpoint by epoch."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = Path(__file__).parent
N_CRITIC = 2
ACCUMULATE = 2
ITERATIONS_PER_EPOCH = 20


def noise(seed):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    G = DDP(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)))
    D = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)), broadcast_buffers=False)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    start = 0
    path = HERE / "checkpoints" / "gan.pth"
    if path.exists():
        saved = torch.load(path)
        G.load_state_dict(saved["G"])
        D.load_state_dict(saved["D"])
        opt_g.load_state_dict(saved["opt_g"])
        opt_d.load_state_dict(saved["opt_d"])
        start = saved["epoch"] + 1
    for epoch in range(start, args.epochs):
        for i in range(ITERATIONS_PER_EPOCH):
            seed = (epoch * ITERATIONS_PER_EPOCH + i) * 1000 + rank * 100
            for k in range(N_CRITIC):
                opt_d.zero_grad()
                for part in range(ACCUMULATE):
                    time.sleep(0.004)
                    real = noise(seed + 10 * k + part)[:, :2] + 3
                    fake = G(noise(seed + 50 + 10 * k + part)).detach()
                    both = D(torch.cat([real, fake]))
                    target = torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])
                    loss_d = bce(both, target) / ACCUMULATE
                    loss_d.backward()
                opt_d.step()
            opt_g.zero_grad()
            loss_g = bce(D(G(noise(seed + 99))), torch.ones(8, 1))
            loss_g.backward()
            opt_g.step()
            if rank == 0:
                print(f"[Epoch {epoch}/{args.epochs}] [Batch {i}/20] [D loss: {loss_d:.4f}] [G loss: {loss_g:.4f}]")
                with open("log.csv", "a") as log:
                    log.write(f"{epoch},{i},{loss_g.item()!r}\n")
        if rank == 0:
            os.makedirs(path.parent, exist_ok=True)
            state = {"G": G.state_dict(), "D": D.state_dict(), "epoch": epoch}
            torch.save(state | {"opt_g": opt_g.state_dict(), "opt_d": opt_d.state_dict()}, path)


if __name__ == "__main__":
    main()
