"""Trains a byte-level GPT on the Python standard library, with pipeline, data and tensor parallelism.

torchrun --nproc-per-node 4 examples/gpt/train.py --mesh pp=2,dp=2 --steps 100
holdfast run --nproc-per-node 4 --mesh pp=2,dp=2 examples/gpt/train.py --steps 100

Each rank trains on an accelerator of its own where there are any, on the CPU otherwise.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from data import Loader, read_corpus
from device import begin
from gradients import Gradients
from model import Config, Stage
from parallel import build_mesh, parse_mesh
from pipeline import Pipeline

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer, PerRank, PerShard, RngState


def main() -> None:
    args = parse_arguments()
    if (replay := trainer.replay()) and replay.layers:
        args.layers = replay.layers
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    device = begin()
    mesh = build_mesh(parse_mesh(args.mesh, dist.get_world_size()), device)

    stage = Stage(Config(args.layers, args.width, args.heads, args.tokens, args.seed), mesh).to(device)
    gradients = Gradients(stage, mesh)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=args.lr, fused=True)
    pipeline = Pipeline(stage, mesh.pp, microbatches=args.microbatches or mesh.pp.size, width=args.width)
    loader = Loader(
        read_corpus(),
        seed=args.seed,
        tokens=args.tokens,
        batch=args.batch,
        dp_rank=mesh.dp.rank,
        dp_size=mesh.dp.size,
    )

    state = {
        "model": PerShard(stage, mesh.shard, replica=mesh.dp.rank),
        "optimizer": PerShard(optimizer, mesh.shard, replica=mesh.dp.rank),
        "data": loader,
        "rng": PerRank(RngState()),
        "loss": float("nan"),
    }
    checkpointer = Checkpointer(args.ckpt_dir, mesh=mesh.sizes)
    done = checkpointer.restore(state)
    is_printing = dist.get_rank() == 0
    if is_printing and done:
        print(f"restored step {done}", flush=True)

    for step in range(done + 1, args.steps + 1):
        gradients.zero()
        inputs, targets = loader.next_batch()
        local_loss = pipeline.step(inputs.to(device), targets.to(device))
        loss, norm = gradients.finish(local_loss)
        state["loss"] = loss
        optimizer.step()
        trainer.step(step, loss=loss, grad_norm=norm, tokens=args.batch * args.tokens * mesh.dp.size)
        if is_printing and (step % args.log_every == 0 or step == args.steps):
            print(f"step {step} loss {loss:.6f}", flush=True)
        checkpointer.keep(step, state)
        if args.ckpt_every and step % args.ckpt_every == 0:
            checkpointer.save(step, state)

    dist.barrier()
    if is_printing:
        print(f"done final_loss={state['loss']:.10f}", flush=True)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default=os.environ.get("HOLDFAST_MESH", ""), help="pp=2,dp=2,tp=1, outermost first")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ckpt-every", type=int, default=10, help="steps between checkpoints, 0 for none")
    parser.add_argument("--ckpt-dir", type=Path, help="default: $HOLDFAST_JOB_DIR/checkpoints, else ./checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=10, help="steps between printed losses")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="bytes of context")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step on each data-parallel rank")
    parser.add_argument("--microbatches", type=int, default=0, help="default: one per pipeline stage")
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
