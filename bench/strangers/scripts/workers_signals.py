# type: ignore
"""Forked DataLoader workers, and handlers of its own for SIGTERM and SIGUSR1, which save at the end of the step."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STEPS = 160
EVERY = 50
wants_save = False


def on_signal(number, frame):
    global wants_save
    wants_save = True
    if number == signal.SIGTERM:
        print("SIGTERM: saving before the end", flush=True)


class Stream(IterableDataset):
    def __init__(self, start, rank):
        self.start, self.rank = start, rank

    def __iter__(self):
        info = get_worker_info()
        for step in range(self.start, STEPS):
            if (step - self.start) % info.num_workers == info.id:
                time.sleep(0.03)
                yield torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 10 + self.rank))


def main():
    global wants_save
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGUSR1, on_signal)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    start = 0
    if os.path.exists("state.pkl"):
        with open("state.pkl", "rb") as file:
            start, weights, momenta = pickle.load(file)
        net.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
    net = DDP(net)
    loader = DataLoader(Stream(start, rank), batch_size=None, num_workers=2, persistent_workers=True)
    for done, batch in enumerate(loader, start + 1):
        loss = nn.functional.mse_loss(net(batch), batch.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open("progress.txt", "a") as file:
                file.write(f"{done} {loss.item()!r}\n")
        if rank == 0 and (done % EVERY == 0 or wants_save):
            with open("state.tmp", "wb") as file:
                pickle.dump((done, net.module.state_dict(), optimizer.state_dict()), file)
            os.replace("state.tmp", "state.pkl")
            wants_save = False
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    main()
