"""A script that knows nothing of Holdfast: data parallelism and its own checkpoints, as torchrun scripts are written.

Benchmarks run it unchanged under torchrun and under Holdfast. Rank 0's lines begin with the wall clock in seconds;
a step is printed when all ranks have completed it, for its gradients come from an all-reduce.

    torchrun --nproc-per-node 4 examples/minimal_ddp.py --steps 1000 --ckpt-dir /tmp/minimal
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 256
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ckpt-every", type=int, default=10, help="steps between checkpoints, 0 for none")
    parser.add_argument("--ckpt-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--print-every", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    device = begin()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    teacher = (torch.randn(WIDTH, WIDTH) / WIDTH**0.5).to(device)
    done = restore(args.ckpt_dir / "latest.pt", model, optimizer, device)
    say(rank, f"start at step {done + 1}")

    for step in range(done + 1, args.steps + 1):
        # Seeded by step and rank: a restarted run sees the batches that it would have seen.
        inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step * world_size + rank)).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        average([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        optimizer.step()
        if step % args.print_every == 0 or step == args.steps:
            say(rank, f"step {step} loss {loss.item():.6f}")
        if rank == 0 and args.ckpt_every and step % args.ckpt_every == 0:
            save(args.ckpt_dir / "latest.pt", step, model, optimizer)

    dist.barrier()
    say(rank, "done")
    dist.destroy_process_group()


def begin() -> torch.device:
    """Join the job on this rank's accelerator (over nccl on GPUs), or on the CPU over gloo where there is none."""
    if not torch.accelerator.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
    return device


def average(gradients: list[torch.Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with open(unfinished, "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """All ranks read rank 0's file. Returns the step it was saved at, 0 when there is none."""
    # Rank 0 writes no checkpoint before all ranks have read: its first step needs their gradients.
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(f"{time.time():.6f} {text}", flush=True)


if __name__ == "__main__":
    main()
