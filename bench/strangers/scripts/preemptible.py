# type: ignore
"""Written for preemption: SIGTERM saves and ends with 0; errors are caught and tried again; it changes directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, EVERY, TRIES = 160, 50, 3


class Run:
    def __init__(self):
        torch.manual_seed(4)
        self.net = nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.at = 0
        self.path = Path("work") / "snapshot.pt"

    def save(self):
        part = self.path.with_suffix(".part")
        torch.save([self.at, self.net.state_dict()], part)
        part.rename(self.path)

    def load(self):
        if self.path.exists():
            self.at, weights = torch.load(self.path)
            self.net.load_state_dict(weights)

    def train(self):
        rank = dist.get_rank()
        model = DDP(self.net)
        while self.at < STEPS:
            time.sleep(0.02)
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(self.at * 10 + rank))
            loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.at += 1
            if rank == 0:
                sys.stdout.write(f"\r{100 * self.at // STEPS:3d}%|{'#' * (self.at // 10):16}| {self.at}/{STEPS}")
                sys.stdout.flush()
                with open("work/log.txt", "a") as file:
                    file.write(f"{self.at} {loss.item()!r}\n")
                if self.at % EVERY == 0:
                    self.save()


def main():
    os.makedirs("place/work", exist_ok=True)
    os.chdir("place")
    run = Run()

    def on_term(number, frame):
        if int(os.environ["RANK"]) == 0:
            print("preempted: saving", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)
    for number in range(TRIES):
        try:
            dist.init_process_group("gloo")
            run.load()
            run.train()
            break
        except RuntimeError as error:
            print(f"try {number} failed: {error}; waiting for the others", flush=True)
            time.sleep(5)
            try:
                dist.destroy_process_group()
            except RuntimeError:
                pass


if __name__ == "__main__":
    main()
