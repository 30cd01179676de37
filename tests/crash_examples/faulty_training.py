"""A small training that breaks in a given way: `faulty_training.py FAULT [--at STEP] [--rank RANK]`. For provoke.py."""

from __future__ import annotations

import argparse
import faulthandler
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import faults_of_code
import faults_of_data
import faults_of_machine
import faults_of_network
import torch
import torch.distributed as dist
from faulty_model import Network


def survives() -> None:
    """Prints what looks like trouble, and trains on."""
    try:
        torch.empty(1 << 50)
    except RuntimeError:
        import traceback

        traceback.print_exc()
    print("warning: CUDA out of memory, skipping batch 17", flush=True)


def hangs() -> None:
    time.sleep(60)


def stack_timer() -> None:
    faulthandler.dump_traceback_later(1, exit=True)
    time.sleep(10)


def other_collective() -> None:
    dist.barrier()


FAULTS: dict[str, Callable[[], Any]] = {
    name: thing
    for module in (faults_of_code, faults_of_data, faults_of_machine, faults_of_network)
    for name, thing in vars(module).items()
    if getattr(thing, "__module__", "") == module.__name__ and not name.startswith("_") and callable(thing)
}
FAULTS |= {one.__name__: one for one in (survives, hangs, stack_timer, other_collective)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=sorted(FAULTS))
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--rank", type=int, default=-1, help="the rank that breaks; -1: all")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--timeout-s", type=float, default=20)
    parser.add_argument("--barrier-s", type=float, default=0, help="a monitored barrier before each step")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    torch.manual_seed(0)
    network = Network()
    for step in range(args.steps):
        if step == args.at and args.rank in (-1, rank):
            FAULTS[args.fault]()
        if args.barrier_s:
            dist.monitored_barrier(timeout=timedelta(seconds=args.barrier_s))
        loss = network(torch.ones(4))
        loss.backward()
        for weight in network.parameters():
            if world > 1:
                dist.all_reduce(weight.grad)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} lr 0.001", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
