# type: ignore
"""In the style of accelerate's examples: a plain loop, accumulated gradients, save_state into step_N."""

from __future__ import annotations

import argparse
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpointing_steps", type=int, default=50)
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--output_dir", default="states")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir=args.output_dir)
    set_seed(42)
    xs = torch.randn(1600, 8)
    train_dataloader = DataLoader(TensorDataset(xs, xs.roll(1, 1)), shuffle=True, batch_size=8)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=200)
    model, optimizer, train_dataloader, scheduler = accelerator.prepare(model, optimizer, train_dataloader, scheduler)

    overall_step = starting_epoch = resume_step = 0
    dirs = [d.name for d in os.scandir(args.output_dir) if d.is_dir()] if os.path.isdir(args.output_dir) else []
    if dirs:
        path = max(dirs, key=lambda name: int(name.removeprefix("step_")))
        accelerator.print(f"Resumed from checkpoint: {path}")
        accelerator.load_state(os.path.join(args.output_dir, path))
        overall_step = int(path.removeprefix("step_"))
        starting_epoch, resume_step = divmod(overall_step, len(train_dataloader))

    for epoch in range(starting_epoch, args.num_epochs):
        model.train()
        active = train_dataloader
        if epoch == starting_epoch and resume_step:
            active = accelerator.skip_first_batches(train_dataloader, resume_step)
        for inputs, targets in active:
            time.sleep(0.008)
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            overall_step += 1
            if accelerator.is_main_process:
                os.makedirs(args.output_dir, exist_ok=True)
                with open(os.path.join(args.output_dir, "log.txt"), "a") as file:
                    file.write(f"{overall_step} {loss.item()!r}\n")
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
