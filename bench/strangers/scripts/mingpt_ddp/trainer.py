# type: ignore
"""The trainer of minGPT-ddp: epochs, a snapshot every few of them, which is loaded if it is there."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import fsspec
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: int
    batch_size: int
    data_loader_workers: int
    grad_norm_clip: float
    snapshot_path: str
    save_every: int


@dataclass
class Snapshot:
    model_state: OrderedDict[str, torch.Tensor]
    optimizer_state: dict[str, Any]
    finished_epoch: int


class Trainer:
    def __init__(
        self, config: TrainerConfig, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Any]
    ) -> None:
        self.config = config
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.train_loader = DataLoader(
            data,
            batch_size=config.batch_size,
            shuffle=False,
            num_workers=config.data_loader_workers,
            sampler=DistributedSampler(data),
        )
        self.epochs_run = 0
        self.model = model
        self.optimizer = optimizer
        self._load_snapshot()
        self.model = DDP(self.model)

    def _load_snapshot(self) -> None:
        try:
            with fsspec.open(self.config.snapshot_path) as file:
                data = torch.load(file, map_location="cpu")
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch")
            return
        snapshot = Snapshot(**data)
        self.model.load_state_dict(snapshot.model_state)
        self.optimizer.load_state_dict(snapshot.optimizer_state)
        self.epochs_run = snapshot.finished_epoch
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> float:
        _, loss = self.model(source, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
        self.optimizer.step()
        return float(loss.item())

    def _run_epoch(self, epoch: int) -> None:
        self.train_loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for iteration, (source, targets) in enumerate(self.train_loader):
            loss = self._run_batch(source, targets)
            print(f"[RANK{self.global_rank}] Epoch {epoch} | Iter {iteration} | Train Loss {loss!r}", flush=True)
            if self.global_rank == 0:
                with open("train_log.csv", "a") as log:
                    log.write(f"{epoch},{iteration},{loss!r}\n")

    def _save_snapshot(self, epoch: int) -> None:
        raw = self.model.module if hasattr(self.model, "module") else self.model
        snapshot = Snapshot(raw.state_dict(), self.optimizer.state_dict(), epoch)  # type: ignore[operator,union-attr,arg-type]
        torch.save(asdict(snapshot), self.config.snapshot_path)
        print(f"Snapshot saved at epoch {epoch}")

    def train(self) -> None:
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch + 1)
            if self.local_rank == 0 and (epoch + 1) % self.config.save_every == 0:
                self._save_snapshot(epoch + 1)
