"""A model cut by FSDP2, kept in the memory of its nodes at every step by torch.distributed.checkpoint.

    holdfast run --nnodes 2 --nproc-per-node 2 examples/fsdp2.py --steps 2000

Kill a rank meanwhile: the job goes on from the step that it had done. It trains on accelerators where there are any, on
CPUs over gloo otherwise.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast import trainer


class Training:
    """Model, optimizer and generator: everything that a step changes."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.device = device
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
        fully_shard(self.model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        # Each rank draws from its own, and gets its own back.
        torch.manual_seed(dist.get_rank())

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        torch.set_rng_state(state["rng"])

    def step(self, width: int) -> torch.Tensor:
        batch = torch.randn(8, width).to(self.device)
        loss = nn.functional.mse_loss(self.model(batch), batch.roll(1, dims=1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()

    torch.set_num_threads(1)
    training = Training(options.width, begin())
    state = {"training": training}

    reader = trainer.storage_reader()
    if reader.step:
        dcp.load(state, storage_reader=reader)
    if dist.get_rank() == 0:
        print(f"start at step {reader.step + 1}", flush=True)

    for step in range(reader.step + 1, options.steps + 1):
        loss = training.step(options.width)
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        trainer.step(step, loss=loss)
        dcp.save(state, storage_writer=trainer.storage_writer(step=step))
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
