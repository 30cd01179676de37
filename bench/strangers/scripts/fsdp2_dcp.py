# type: ignore
"""FSDP2, and its state by torch.distributed.checkpoint in a folder for each saved step."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer, step=0):
        self.model, self.optimizer, self.step = model, optimizer, step

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "step": torch.tensor(self.step)}

    def load_state_dict(self, state_dict):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optim"],
        )
        self.step = int(state_dict["step"])


def newest(folder):
    if not os.path.isdir(folder):
        return None
    found = [name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, ".metadata"))]
    return os.path.join(folder, max(found, key=lambda name: int(name.split("-")[1]))) if found else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    app = AppState(model, optimizer)
    if found := newest(args.folder):
        dcp.load({"app": app}, checkpoint_id=found)
        if rank == 0:
            print(f"loaded {found}")
    while app.step < args.steps:
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(app.step * 100 + rank)
        batch = torch.randn(8, 16, generator=generator)
        loss = nn.functional.mse_loss(model(batch), batch.roll(1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        app.step += 1
        if rank == 0:
            with open("log.txt", "a") as file:
                file.write(f"{app.step} {loss.item()!r}\n")
        if app.step % args.every == 0:
            dcp.save({"app": app}, checkpoint_id=os.path.join(args.folder, f"step-{app.step}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
