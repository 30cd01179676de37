"""A script as people write them, which knows nothing of Holdfast: nanoGPT's way with one file that is overwritten, or a
directory of torch.distributed.checkpoint for each save, of which the newest two are kept.

    saves.py torch|dcp DIRECTORY STEPS EVERY
"""

from __future__ import annotations

import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, BATCH, SAVES_KEPT = 1024, 8, 2, 2


def main() -> None:
    how, out_dir, steps, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    raw_model, model = model, DistributedDataParallel(model)
    restore = {"torch": restore_torch, "dcp": restore_dcp}[how]
    save = {"torch": save_torch, "dcp": save_dcp}[how]
    os.makedirs(out_dir, exist_ok=True)
    iter_num = restore(out_dir, raw_model, optimizer)
    if rank == 0:
        print(f"begins at {iter_num}", flush=True)
    while iter_num < steps:
        inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(iter_num * world_size + rank))
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iter_num += 1
        if rank == 0:
            print(f"iter {iter_num}: loss {loss.item():.9f}", flush=True)
        if iter_num % every == 0:
            save(out_dir, iter_num, raw_model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


def restore_torch(out_dir: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    path = os.path.join(out_dir, "ckpt.pt")
    if not os.path.exists(path):
        return 0
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["iter_num"])


def save_torch(out_dir: str, iter_num: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if dist.get_rank() == 0:
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))


def whole(out_dir: str) -> list[int]:
    found = [name for name in os.listdir(out_dir) if os.path.exists(os.path.join(out_dir, name, ".metadata"))]
    return sorted(int(name.removeprefix("step-")) for name in found)


def restore_dcp(out_dir: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    steps = whole(out_dir)
    if not steps:
        return 0
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{out_dir}/step-{steps[-1]}")
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    return steps[-1]


def save_dcp(out_dir: str, iter_num: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.save(state, checkpoint_id=f"{out_dir}/step-{iter_num}")
    if dist.get_rank() == 0:
        for old in whole(out_dir)[:-SAVES_KEPT]:
            shutil.rmtree(f"{out_dir}/step-{old}")


if __name__ == "__main__":
    main()
