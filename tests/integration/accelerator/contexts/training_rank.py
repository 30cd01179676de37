"""A rank on the simulated accelerator: ``training_rank.py DIRECTORY``. Notes its steps there, and obeys files there.

`stop-at` has the step after which it waits. `allocate` has bytes to take, `allocate-more` more; `allocated` says how
that went. If it cannot have those of `need`, it fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer, PerRank, RngState

STEP_S = 0.02
STEPS_MAX = 500

place, began = Path(sys.argv[1]), time.monotonic()
has_context = torch.get_device_module("sim").is_initialized()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to("sim")
torch.accelerator.synchronize()
context_s = time.monotonic() - began
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer, "rng": PerRank(RngState())}
checkpointer = Checkpointer()
taken: list[torch.Tensor] = []


def note(**fields: object) -> None:
    with (place / f"notes-{os.environ['HOLDFAST_GENERATION']}").open("a") as file:
        file.write(json.dumps(fields) + "\n")


def allocate(name: str) -> None:
    wanted = place / name
    if not wanted.exists():
        return
    nbytes = int(wanted.read_text())
    wanted.unlink()
    try:
        taken.append(torch.empty(nbytes, dtype=torch.uint8, device="sim"))
        torch.accelerator.synchronize()
        note(allocated=name)
    except RuntimeError as error:
        if name == "need":
            raise
        note(allocated=f"{name}: {error}")


allocate("allocate-first")
done = checkpointer.restore(state)
note(pid=os.getpid(), has_context=has_context, context_s=context_s, restored=done)
for step in range(done + 1, STEPS_MAX):
    loss = model(torch.rand(8, 16, device="sim")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trainer.step(step, loss=loss)
    checkpointer.save(step, state)
    note(step=step, loss=loss.item())
    stop_at = place / "stop-at"
    while stop_at.exists() and step >= int(stop_at.read_text() or STEPS_MAX):
        allocate("allocate")
        allocate("allocate-more")
        allocate("need")
        time.sleep(STEP_S)
