"""A training job for tests: each step folds the sum of all ranks' batches into a state, exactly.

It trains until `--until` exists (looked at by rank 0 in each step, all ranks agree) or for `--steps`. Every rank notes
each completed step in a journal that no part of Holdfast reads or writes: what was trained, by whom, in which order.
With `--keep-bytes` it keeps every step in its node's memory, with a tensor of that size, which it spoils right after;
with `--distinct` each rank has another one, so that replicas have nothing in common. With `--still` the tensor never
changes, so training waits for its copy only where it keeps the next step, and steps are kept apart if that costs much;
else each step is kept, however busy the machine is.
While `--gate` exists, it does no step after the one that is written there.
While `--service` exists, a rank (`--fault-rank`) fetches in each step what it names.
With `--data` each rank looks into that directory in each step.
When `--broken` exists, a rank (`--fault-rank`) takes it away and ends as one does whose GPU's memory is broken.
When `--poison` exists, a rank (`--fault-rank`) takes it away and has a weight that is no number from then on.

With `--pair` ranks 0 and 1 reduce something among themselves before they meet the others.

It can be told to misbehave: `--fault raise@7` for one of the ways in FAULTS at step 7, `@first` for each generation's
first step, `@init` before ranks have met, `@end` behind it all; `--fault-once` to do it in one generation only.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from arithmetic import batch, folded
from torch.utils.data import DataLoader, Dataset

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer, PerRank


def raise_type_error() -> NoReturn:
    raise TypeError("the model takes 3 arguments, 4 were given")


def raise_and_linger() -> NoReturn:
    """As a script whose exit handlers upload its last metrics: its partners notice, and end, long before it has."""
    atexit.register(time.sleep, 20)
    dist.destroy_process_group()
    raise_type_error()


def raise_with_odd_text() -> NoReturn:
    raise ValueError("NUL \0, half a pair \ud800, bell \a, and a line\nbelow" + " and more" * 20_000)


def segfault() -> None:
    ctypes.string_at(0)


def deadlock() -> None:
    """As a lock of the script's own that is taken twice."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_a_worker() -> None:
    """As a data loader one of whose workers never comes back."""
    next(iter(DataLoader(SleepingDataset(), num_workers=1)))


class SleepingDataset(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(1_000_000)
        return index


def go_aside() -> None:
    """Skip the step's collective, and wait for the others in one that they do not come to."""
    dist.all_reduce(torch.zeros(1), group=aside[0])


def reduce_too_much() -> None:
    """The step's collective, in another size."""
    dist.all_reduce(torch.zeros(4, dtype=torch.int64))


aside: list[dist.ProcessGroup] = []

FAULTS: dict[str, Callable[[], object]] = {
    "raise": raise_type_error,
    "raise-and-linger": raise_and_linger,
    "odd-text": raise_with_odd_text,
    "exit": lambda: sys.exit(3),
    "segfault": segfault,
    "deadlock": deadlock,
    "worker-sleeps": wait_for_a_worker,
    "skip": go_aside,
    "other-size": reduce_too_much,
}


def _never_end(*_: object) -> None:
    """Do nothing more, so that no rank ends of a peer's end either."""
    while True:
        signal.pause()


def main() -> None:
    args = parse_arguments()
    misbehave(args, int(os.environ["RANK"]), "init")
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.fault is not None and args.fault.startswith("skip@"):
        aside.append(dist.new_group())
    pair = dist.new_group([0, 1]) if args.pair else None
    generation = int(os.environ.get("HOLDFAST_GENERATION", "0"))
    journal = os.open(args.journal / f"rank-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, _never_end)
    for _ in range(args.children):
        # A session of its own and no parent left: what a data loader's worker becomes when it is forgotten.
        subprocess.run(["sh", "-c", "sleep 1000 & echo $! >> " + str(args.journal / "children")], check=True)
    state: dict[str, Any] = {"folded": 1, "position": 0, "weight": 1.0}
    if args.keep_bytes:
        state["ballast"] = torch.ones(args.keep_bytes // 8, dtype=torch.int64)
    if not args.still:
        os.environ.setdefault("HOLDFAST_KEEP_COST_MAX", "0")
    own = torch.nn.Module()
    if args.distinct:
        own.register_buffer("ballast", state.pop("ballast"))
        state["own"] = PerRank(own)
    checkpointer = Checkpointer()
    step = checkpointer.restore(state) if args.checkpoint_every or args.keep_bytes else 0
    ballast: torch.Tensor = own.get_buffer("ballast") if args.distinct else state.get("ballast", torch.empty(0))
    distinct = rank if args.distinct else 0
    if args.keep_bytes and not args.still and not torch.all(ballast == state["folded"] + (distinct if step else 0)):
        raise AssertionError(f"what was restored is not what was kept at step {step}")
    first = step + 1

    is_over = step >= args.steps
    while not is_over:
        step += 1
        misbehave(args, rank, str(step), "first" if step == first else "")
        while args.gate is not None and step > last_open(args.gate):
            time.sleep(args.gate_s)
        if args.shout_bytes:
            print("x" * args.shout_bytes + f" from rank {rank} at step {step}", flush=True)
        time.sleep(args.step_s if generation <= 1 else args.later_step_s or args.step_s)
        if args.data is not None:
            os.listdir(args.data)
        if args.service is not None and rank == args.fault_rank:
            fetch(args.service)
        wish = rank == 0 and (step >= args.steps or (args.until is not None and args.until.exists()))
        if pair is not None and rank in (0, 1):
            dist.all_reduce(torch.zeros(1), group=pair)
        sums = torch.tensor([batch(state["position"], rank), int(wish)], dtype=torch.int64)
        dist.all_reduce(sums)
        batches, is_over = int(sums[0]), bool(sums[1])
        state["folded"] = folded(state["folded"], batches)
        state["position"] += 1
        if args.broken is not None and rank == args.fault_rank and args.broken.exists():
            args.broken.unlink()
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if args.poison is not None and rank == args.fault_rank and args.poison.exists():
            args.poison.rename(args.journal / f"poisoned-{step}")
            state["weight"] = float("nan")
        trainer.step(step, loss=state["weight"] / step)
        os.write(journal, f"{generation} {step} {os.getpid()} {state['folded']}\n".encode())
        if args.keep_bytes and not args.still:
            ballast.fill_(state["folded"] + distinct)
        if args.keep_bytes:
            checkpointer.keep(step, state)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and not is_over:
            checkpointer.save(step, state)
        if args.keep_bytes and not args.still:
            ballast.fill_(-1)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}", flush=True)
    if state["weight"] != 1.0:
        raise AssertionError(f"the weight is {state['weight']} in the end")
    dist.barrier()
    if rank == 0:
        print(f"done steps={step} folded={state['folded']}", flush=True)
    print(f"rank {rank} of {world_size} ends", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    misbehave(args, rank, "end")


def last_open(gate: Path) -> float:
    try:
        return int(gate.read_text())
    except FileNotFoundError:
        return float("inf")


def fetch(service: Path) -> None:
    try:
        url = service.read_text()
    except FileNotFoundError:
        return
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError as error:
        # As clients of WebHDFS do: the status tells less than the exception that the server names.
        if "RemoteException" in (body := error.read().decode()):
            raise OSError(f"{url}: {body}") from error
        raise


def misbehave(args: argparse.Namespace, rank: int, *moments: str) -> None:
    if args.fault is None or rank != args.fault_rank:
        return
    kind, _, when = args.fault.partition("@")
    if when not in moments:
        return
    if args.fault_once:
        try:
            (args.journal / "fault").touch(exist_ok=False)
        except FileExistsError:
            return
    FAULTS[kind]()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, required=True, help="directory")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--later-step-s", type=float, help="from the second generation on")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps, 0 for never")
    parser.add_argument("--keep-bytes", type=int, default=0, help="keep every step in memory, with so many bytes more")
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--still", action="store_true")
    parser.add_argument("--print-every", type=int, default=10)
    parser.add_argument("--shout-bytes", type=int, default=0, help="printed by every rank in every step")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--children", type=int, default=0, help="processes that each rank leaves behind")
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--gate-s", type=float, default=0.005, help="time between two looks at the gate")
    parser.add_argument("--service", type=Path, help="a file with a URL")
    parser.add_argument("--data", type=Path, help="a directory")
    parser.add_argument("--broken", type=Path)
    parser.add_argument("--poison", type=Path)
    parser.add_argument("--fault")
    parser.add_argument("--fault-rank", type=int, default=0)
    parser.add_argument("--fault-once", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
