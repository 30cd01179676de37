# type: ignore
"""In the style of torch's elastic ImageNet example: @record, SGD, a snapshot with the epoch after each epoch."""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class State:
    def __init__(self, model, optimizer):
        self.epoch = -1
        self.best_loss = 1e9
        self.model = model
        self.optimizer = optimizer

    def capture_snapshot(self):
        return {
            "epoch": self.epoch,
            "best_loss": self.best_loss,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, path):
        snapshot = torch.load(path, map_location="cpu")
        self.epoch = snapshot["epoch"]
        self.best_loss = snapshot["best_loss"]
        self.model.load_state_dict(snapshot["state_dict"])
        self.optimizer.load_state_dict(snapshot["optimizer"])


def save_checkpoint(state, filename):
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)
    temporary = filename + ".tmp"
    torch.save(state.capture_snapshot(), temporary)
    os.rename(temporary, filename)


def train(loader, model, criterion, optimizer, epoch):
    for i, (x, y) in enumerate(loader):
        time.sleep(0.02)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"Epoch: [{epoch}][{i:5d}/{len(loader)}]\tLoss {loss.item():.4e}", flush=True)
        if dist.get_rank() == 0:
            with open("log.csv", "a") as log:
                log.write(f"{epoch},{i},{loss.item()!r}\n")
    return loss.item()


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--dist-backend", default="gloo")
    parser.add_argument("--checkpoint-file", default="/tmp/checkpoint.pth.tar")
    args = parser.parse_args()
    dist.init_process_group(backend=args.dist_backend, init_method="env://", timeout=timedelta(seconds=600))
    torch.manual_seed(3)
    xs = torch.randn(320, 16)
    dataset = TensorDataset(xs, xs.sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    state = State(model, optimizer)
    if os.path.isfile(args.checkpoint_file):
        print(f"=> loading checkpoint file: {args.checkpoint_file}")
        state.load(args.checkpoint_file)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(state.epoch + 1, args.epochs):
        state.epoch = epoch
        sampler.set_epoch(epoch)
        state.best_loss = min(state.best_loss, train(loader, model, nn.MSELoss(), optimizer, epoch))
        if int(os.environ["LOCAL_RANK"]) == 0:
            save_checkpoint(state, args.checkpoint_file)


if __name__ == "__main__":
    main()
