# type: ignore
"""In the style of nanoGPT: globals, overridden by exec, a checkpoint in out_dir when the loss is evaluated."""

import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 2000
log_interval = 1
always_save_checkpoint = True
init_from = "scratch"  # 'scratch' or 'resume'
dataset = "made_up"
gradient_accumulation_steps = 2
batch_size = 12
block_size = 1024
n_embd = 768
learning_rate = 6e-4
max_iters = 600000
grad_clip = 1.0
backend = "gloo"
wait_ms = 10
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
with open("configurator.py") as f:
    exec(f.read())  # noqa: S102
config = {k: globals()[k] for k in config_keys}

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    master_process, seed_offset = True, 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
ctx = nullcontext()

data_dir = os.path.join("data", dataset)
data = np.memmap(os.path.join(data_dir, "train.bin"), dtype=np.uint16, mode="r")


def get_batch():
    time.sleep(wait_ms / 1000)
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, n_embd)
        self.head = nn.Linear(n_embd, 256)

    def forward(self, x, y):
        logits = self.head(self.embed(x))
        return logits, nn.functional.cross_entropy(logits.view(-1, 256), y.view(-1))


iter_num = 0
best_val_loss = 1e9
torch.manual_seed(7)
model = Bigram()
torch.manual_seed(1337 + seed_offset)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
checkpoint = None
if init_from == "scratch":
    print("Initializing a new model from scratch")
elif init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
checkpoint = None
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.stack([raw_model(*get_batch())[1] for _ in range(2)])
    model.train()
    return losses.mean()


X, Y = get_batch()
t0 = time.time()
while True:
    if iter_num % eval_interval == 0 and master_process:
        val_loss = estimate_loss()
        print(f"step {iter_num}: train loss {val_loss:.4f}, val loss {val_loss:.4f}")
        if val_loss < best_val_loss or always_save_checkpoint:
            best_val_loss = val_loss
            if iter_num > 0:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "model_args": {"n_embd": n_embd},
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                    "config": config,
                }
                print(f"saving checkpoint to {out_dir}")
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    if grad_clip != 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item() * gradient_accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms")
        with open(os.path.join(out_dir, "log.txt"), "a") as log:
            log.write(f"iter {iter_num} loss {lossf!r}\n")
    iter_num += 1
    if iter_num > max_iters:
        break

if ddp:
    destroy_process_group()
