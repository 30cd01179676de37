# type: ignore
"""A parameter server over gloo's send and recv: rank 0 has the model and the optimizer, the others have data."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 160
EVERY = 50


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def unflatten(model, vector, *, grads):
    at = 0
    for p in model.parameters():
        part = vector[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
        if grads:
            p.grad = part
        else:
            p.data = part


def serve(model, start):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    if start:
        optimizer.load_state_dict(torch.load("server.pt")["adagrad"])
    for t in range(start, STEPS):
        mean = torch.zeros_like(flat(model))
        for worker in range(1, dist.get_world_size()):
            dist.send(flat(model), worker)
        for worker in range(1, dist.get_world_size()):
            gradient = torch.empty_like(mean)
            dist.recv(gradient, worker)
            mean += gradient / (dist.get_world_size() - 1)
        unflatten(model, mean, grads=True)
        optimizer.step()
        print(f"t={t} |g|={mean.norm():.4f}", flush=True)
        with open("served.txt", "a") as file:
            file.write(f"{t} {mean.norm().item()!r}\n")
        if (t + 1) % EVERY == 0:
            torch.save({"weights": model.state_dict(), "adagrad": optimizer.state_dict(), "t": t + 1}, "server.pt.new")
            os.replace("server.pt.new", "server.pt")


def work(model, start):
    for t in range(start, STEPS):
        weights = torch.empty_like(flat(model))
        dist.recv(weights, 0)
        unflatten(model, weights, grads=False)
        time.sleep(0.02)
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(t * 10 + dist.get_rank()))
        model.zero_grad()
        nn.functional.mse_loss(model(x), x.roll(1, 1)).backward()
        dist.send(torch.cat([p.grad.flatten() for p in model.parameters()]), 0)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    start = 0
    if os.path.exists("server.pt"):
        saved = torch.load("server.pt")
        start = saved["t"]
        model.load_state_dict(saved["weights"])
    (serve if dist.get_rank() == 0 else work)(model, start)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
