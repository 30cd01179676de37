# type: ignore
"""In the style of torchtitan: run with -m, relative imports, a TOML file, a Trainer that is Stateful, FSDP2 and DCP."""

from __future__ import annotations

import argparse
import os
import time
import tomllib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

from .components.checkpoint import CheckpointManager
from .tools import init_logger, logger


class Parts(Stateful):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, which: int) -> None:
        self.model, self.optimizer, self.which = model, optimizer, which

    def state_dict(self) -> dict[str, Any]:
        return get_state_dict(self.model, self.optimizer)[self.which]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        models, optims = get_state_dict(self.model, self.optimizer)
        given = (state, optims) if self.which == 0 else (models, state)
        set_state_dict(self.model, self.optimizer, model_state_dict=given[0], optim_state_dict=given[1])


class Trainer(Stateful):
    @record
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        dist.init_process_group("gloo")
        torch.manual_seed(config["training"]["seed"])
        self.model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0
        states = {"model": Parts(self.model, self.optimizer, 0), "optimizer": Parts(self.model, self.optimizer, 1)}
        self.folder = config["job"]["dump_folder"]
        self.checkpointer = CheckpointManager(
            {**states, "train_state": self},
            os.path.join(self.folder, config["checkpoint"]["folder"]),
            config["checkpoint"]["interval"],
        )

    def train_step(self) -> None:
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(self.step * 100 + dist.get_rank())
        batch = torch.randn(self.config["training"]["local_batch_size"], 16, generator=generator)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(batch), batch.roll(1, 1))
        loss.backward()
        self.optimizer.step()
        dist.all_reduce(loss)
        logger.info("step: %2d  loss: %8.4f  memory:  0.1GiB(0.01%%)  tps: 1,000  mfu: 1.00%%", self.step, loss.item())
        if dist.get_rank() == 0:
            with open(os.path.join(self.folder, "log.txt"), "a") as file:
                file.write(f"{self.step} {loss.item()!r}\n")

    @record
    def train(self) -> None:
        self.checkpointer.load()
        logger.info("Training starts at step %d.", self.step + 1)
        while self.step < self.config["training"]["steps"]:
            self.step += 1
            self.train_step()
            self.checkpointer.save(self.step)
        logger.info("Training completed")

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job.config_file", dest="config_file", required=True)
    with open(parser.parse_args().config_file, "rb") as file:
        config = tomllib.load(file)
    init_logger()
    os.makedirs(config["job"]["dump_folder"], exist_ok=True)
    Trainer(config).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
