# type: ignore
"""In the style of a script for Lightning: a LightningModule, a ModelCheckpoint, fit with ckpt_path."""

from __future__ import annotations

import argparse
import os
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        time.sleep(0.003)
        x = torch.tensor([((index * 31 + k) % 17) / 17 for k in range(8)])
        return x, x.roll(1)


class LitModel(L.LightningModule):
    def __init__(self, out: str):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        self.out = out

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True)
        if self.global_rank == 0:
            with open(os.path.join(self.out, "log.txt"), "a") as file:
                file.write(f"batch of step {self.global_step} loss {loss.item()!r}\n")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=200)
    parser.add_argument("--out", default="lit")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    L.seed_everything(42)
    checkpoint = ModelCheckpoint(dirpath=args.out, every_n_train_steps=50, save_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_steps=args.max_steps,
        max_epochs=-1,
        callbacks=[checkpoint],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = os.path.join(args.out, "last.ckpt")
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    trainer.fit(LitModel(args.out), loader, ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main()
