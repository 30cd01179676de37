# type: ignore
"""Arguments, lines and checkpoints as Megatron-LM's pretrain_gpt.py: a shard for each rank of tensor parallelism."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def parse_args():
    parser = argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False)
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "num-layers", "hidden-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("micro-batch-size", "global-batch-size", "train-iters", "log-interval", "save-interval"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--distributed-backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--distributed-timeout-minutes", type=int, default=10)
    parser.add_argument("--save")
    parser.add_argument("--load")
    args = parser.parse_args()
    args.rank, args.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    args.local_rank = int(os.environ["LOCAL_RANK"])
    return args


class ColumnParallelLinear(nn.Module):
    def __init__(self, size, rank, parallel):
        super().__init__()
        whole = torch.randn(size, size, generator=torch.Generator().manual_seed(1)) / size**0.5
        self.weight = nn.Parameter(whole.chunk(parallel)[rank].clone())

    def forward(self, x):
        return x @ self.weight.t()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(dist.get_world_size(ctx.group), -1)[dist.get_rank(ctx.group)].contiguous(), None


def checkpoint_name(folder, iteration, rank):
    return os.path.join(folder, f"iter_{iteration:07d}", f"mp_rank_{rank:02d}", "model_optim_rng.pt")


def save_checkpoint(args, iteration, model, optimizer):
    name = checkpoint_name(args.save, iteration, args.rank)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    state = {"args": args, "checkpoint_version": 3.0, "iteration": iteration}
    state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng_state": torch.get_rng_state()}
    torch.save(state, name)
    dist.barrier()
    if args.rank == 0:
        with open(os.path.join(args.save, "latest_checkpointed_iteration.txt"), "w") as f:
            f.write(str(iteration))
    dist.barrier()


def load_checkpoint(args, model, optimizer):
    tracker = os.path.join(args.load or "", "latest_checkpointed_iteration.txt")
    if not args.load or not os.path.isfile(tracker):
        return 0
    with open(tracker) as f:
        iteration = int(f.read().strip())
    state = torch.load(checkpoint_name(args.load, iteration, args.rank), map_location="cpu", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng_state"])
    return state["iteration"]


def main():
    args = parse_args()
    dist.init_process_group(args.distributed_backend)
    group = dist.new_group(list(range(args.tensor_model_parallel_size)), group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    layers = [
        ColumnParallelLinear(args.hidden_size, args.rank, args.tensor_model_parallel_size)
        for _ in range(args.num_layers)
    ]
    model = nn.ModuleList(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    iteration = load_checkpoint(args, model, optimizer)
    while iteration < args.train_iters:
        begin = time.time()
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(iteration)
        x = torch.randn(args.micro_batch_size, args.hidden_size, generator=generator)
        out = x
        for layer in model:
            out = Gather.apply(torch.tanh(layer(out)), group)
        loss = nn.functional.mse_loss(out, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iteration += 1
        if args.rank == args.world_size - 1 and iteration % args.log_interval == 0:
            print(
                f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {iteration:8d}/{args.train_iters:8d} |"
                f" consumed samples: {iteration * args.global_batch_size:12d} |"
                f" elapsed time per iteration (ms): {(time.time() - begin) * 1000:.1f} |"
                f" learning rate: {args.lr:.6E} | global batch size: {args.global_batch_size:5d} |"
                f" lm loss: {loss.item():.6E} | loss scale: 1.0 | number of skipped iterations:   0 |",
                flush=True,
            )
        if args.rank == 0:
            with open("log.txt", "a") as log:
                log.write(f"{iteration} {loss.item()!r}\n")
        if args.save and iteration % args.save_interval == 0:
            save_checkpoint(args, iteration, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
