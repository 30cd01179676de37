# type: ignore
"""Run as `-m app`: relative imports, a learning rate that is warmed up, RMSprop, saves from an atexit-like hook."""

from __future__ import annotations

import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from . import settings
from .net import build

log = logging.getLogger("app")


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    net = build()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
    done = 0
    saved = sorted(settings.PLACE.glob("*.pt"), key=lambda path: int(path.stem))
    if saved:
        state = torch.load(saved[-1])
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        warmup.load_state_dict(state["warmup"])
        done = int(saved[-1].stem)
    model = DDP(net)
    while done < settings.STEPS:
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(done * 10 + dist.get_rank())
        batch = torch.randn(8, 16, generator=generator)
        loss = nn.functional.mse_loss(model(batch), batch.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        done += 1
        if dist.get_rank() == 0:
            settings.PLACE.mkdir(exist_ok=True)
            with (settings.PLACE / "history").open("a") as history:
                history.write(f"{done} {loss.item()!r}\n")
            if done % 20 == 0:
                log.info("%d done, loss %.3f", done, loss.item())
            if done % settings.EVERY == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "warmup": warmup.state_dict()}
                part = settings.PLACE / "part"
                torch.save(state, part)
                part.rename(settings.PLACE / f"{done}.pt")
    dist.destroy_process_group()


main()
