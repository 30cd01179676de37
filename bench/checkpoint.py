"""A checkpoint at every step: how long training stands still for it, and how fast it comes back.

    python bench/checkpoint.py            50 MB, 500 MB and 2 GB of state; some 10 minutes on two cores
    python bench/checkpoint.py --quick    50 MB and 200 MB

One process trains a model whose parameters and optimizer states have the given size: a step computes for a while, then
the optimizer changes all of it in place. After each step the state is saved by torch.save, by DCP
(torch.distributed.checkpoint: save, and async_save, whose staging is waited for before the optimizer may go on), or by
the memory engine. They take turns.

- blocked: the time in the call, and whatever must be awaited before the state may be changed.
- overhead: by how much the median step is longer than without any checkpoint: also what copying takes from training.
- copy: the engine's rate from the call to the seal, beside what memcpy reaches here with warm memory.
- restore: until all tensors are there as torch tensors, their checksums verified where there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from report import final_line, median, rounded, table, tell
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from holdfast.trainer.memory import VaultClient
from holdfast.vault_wire import ShardName

MB = 1_000_000
TENSOR_BYTES = 16 * MB
"""A layer of a model; the state has as many as it takes."""
COMPUTE_S_PER_GB = 1.0
COMPUTE_MIN_S = 0.1
STATES = 4
"""Parameter, master copy and two Adam moments, fp32."""


class Job:
    """A model that fills `nbytes` with parameters and optimizer states, and trains without learning anything."""

    def __init__(self, nbytes: int) -> None:
        count = max(1, nbytes // STATES // TENSOR_BYTES)
        elements = nbytes // STATES // count // 4
        names = ("parameter", "master", "exp_avg", "exp_avg_sq")
        self.state: dict[str, Any] = {
            name: {f"layer{index}": torch.full((elements,), 1.0) for index in range(count)} for name in names
        }
        self.tensors = [tensor for group in self.state.values() for tensor in group.values()]
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)
        self.compute_s = max(COMPUTE_MIN_S, COMPUTE_S_PER_GB * self.nbytes / 1e9)
        self._matrix = torch.randn(384, 384)
        self._rounds = 0
        self._calibrate()

    def _calibrate(self) -> None:
        began = time.perf_counter()
        for _ in range(200):
            self._matrix @ self._matrix
        self._rounds = max(1, int(self.compute_s / ((time.perf_counter() - began) / 200)))

    def compute(self) -> None:
        """Forward and backward: always the same work."""
        for _ in range(self._rounds):
            self._matrix @ self._matrix

    def optimize(self) -> None:
        """Change everything in place."""
        for tensor in self.tensors:
            tensor.add_(1.0)


Save = Callable[[int, dict[str, Any]], Callable[[], None]]
"""Begins a save; what it returns waits until the state may be changed."""


@contextlib.contextmanager
def nothing(_: Path) -> Iterator[Save]:
    yield lambda step, state: lambda: None


@contextlib.contextmanager
def torch_save(directory: Path) -> Iterator[Save]:
    def save(step: int, state: dict[str, Any]) -> Callable[[], None]:
        torch.save(state, directory / "torch.pt")
        return lambda: None

    yield save


@contextlib.contextmanager
def dcp_save(directory: Path) -> Iterator[Save]:
    def save(step: int, state: dict[str, Any]) -> Callable[[], None]:
        dcp.save(state, checkpoint_id=directory / "dcp")
        return lambda: None

    yield save


@contextlib.contextmanager
def dcp_async(directory: Path) -> Iterator[Save]:
    uploads: list[Future[Any]] = []
    # What of its options a machine without an accelerator can do.
    stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_non_blocking_copy=False))

    def save(step: int, state: dict[str, Any]) -> Callable[[], None]:
        if uploads:
            uploads.pop().result()
        response = dcp.async_save(state, checkpoint_id=directory / "async", async_stager=stager)
        uploads.append(response.upload_completion)
        return lambda: response.staging_completion.result() and None

    yield save
    for upload in uploads:
        upload.result()
    stager.close()


@contextlib.contextmanager
def holdfast_memory(directory: Path) -> Iterator[Save]:
    with vault(directory) as client:

        def save(step: int, state: dict[str, Any]) -> Callable[[], None]:
            client.save(step, state)
            return lambda: None

        yield save
        client.steps()


@contextlib.contextmanager
def vault(directory: Path) -> Iterator[VaultClient]:
    """A vault of its own, and this process as its only rank."""
    reading, writing = os.pipe()
    command = (sys.executable, "-m", "holdfast_agent.vault", "--state-dir", str(directory), "--ready-fd", str(writing))
    process = subprocess.Popen(command, pass_fds=[writing])
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    client = VaultClient(directory, ShardName(job="bench", submitted_ms=0, world_size=1, rank=0), generation=1)
    try:
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait()


CONTENDERS = {
    "none": nothing,
    "torch.save": torch_save,
    "dcp.save": dcp_save,
    "dcp.async_save": dcp_async,
    "holdfast": holdfast_memory,
}


def run(name: str, job: Job, directory: Path, steps: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Train; gives the blocked time and the whole time of each step, in seconds."""
    blocked: list[float] = []
    whole: list[float] = []
    with CONTENDERS[name](directory) as save:
        for step in range(warm_up + steps):
            began = time.perf_counter()
            call_began = time.perf_counter()
            await_changeable = save(step, job.state)
            in_call = time.perf_counter() - call_began
            job.compute()
            wait_began = time.perf_counter()
            await_changeable()
            waited = time.perf_counter() - wait_began
            job.optimize()
            if step >= warm_up:
                blocked.append(in_call + waited)
                whole.append(time.perf_counter() - began)
    return blocked, whole


def memcpy_gb_s(nbytes: int) -> float:
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    took: list[float] = []
    for _ in range(7):
        began = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - began)
    return nbytes / (median(took) or 1) / 1e9


def timed(work: Callable[[], object], runs: int = 5) -> float:
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        kept = work()
        took.append(time.perf_counter() - began)
        del kept
    return median(took) or 0.0


def copy_and_restore(job: Job, directory: Path) -> dict[str, float]:
    """The engine's rate when nothing else runs, and what it takes to have the state back, beside torch.load."""
    with vault(directory) as client:
        for step in range(3):
            client.save(step, job.state)
            client.steps()

        def save_and_seal() -> None:
            client.save(10, job.state)
            client.steps()

        sealed_s = timed(save_and_seal)
        restored_s = timed(lambda: client.restore(client.steps()[0]))
    path = directory / "torch.pt"
    torch.save(job.state, path)
    loaded_s = timed(lambda: torch.load(path, weights_only=True))
    memcpy = memcpy_gb_s(min(job.nbytes, 1_000 * MB))
    rate = job.nbytes / sealed_s / 1e9
    return {
        "memcpy_gb_s": memcpy,
        "copied_and_sealed_gb_s": rate,
        "torch_load_s": loaded_s,
        "restored_s": restored_s,
        "torch_load_over_restored": loaded_s / restored_s,
    }


def measure(nbytes: int, directory: Path, rounds: int, steps: int) -> dict[str, Any]:
    job = Job(nbytes)
    blocked: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    whole: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        names = list(CONTENDERS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            some_blocked, some_whole = run(name, job, directory, steps, warm_up=2)
            blocked[name] += some_blocked
            whole[name] += some_whole
        tell(f"[{number + 1}/{rounds}] {job.nbytes // MB} MB: step {1000 * (median(whole['none']) or 0):.0f} ms")
    base = median(whole["none"]) or 1.0
    return {
        "state_mb": job.nbytes // MB,
        "step_s": base,
        "step_s_per_gb": base / (job.nbytes / 1e9),
        "blocked_ms": {name: 1000 * (median(values) or 0) for name, values in blocked.items()},
        "overhead_percent": {name: 100 * ((median(values) or 0) / base - 1) for name, values in whole.items()},
        **copy_and_restore(job, directory),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 MB and 200 MB, fewer rounds")
    parser.add_argument("--sizes", help="megabytes of state, with commas")
    args = parser.parse_args()
    sizes = [int(size) for size in (args.sizes or ("50,200" if args.quick else "50,500,2000")).split(",")]
    rounds, steps = (2, 3) if args.quick else (5, 4)
    here = machine.describe()
    tell(machine.in_words(here))
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    root = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        found = [measure(size * MB, root, rounds, steps) for size in sizes]
    finally:
        shutil.rmtree(root)

    print(f"\n{machine.in_words(here)}\n\ntraining stands still, ms a step; and its share of what torch.save takes:")
    rows: list[tuple[object, ...]] = []
    for one in found:
        for name in list(CONTENDERS)[1:]:
            ms, all_of = one["blocked_ms"][name], one["blocked_ms"]["torch.save"]
            rows.append((one["state_mb"], name, ms, 100 * (1 - ms / all_of), one["overhead_percent"][name]))
    table(("MB", "by", "blocked ms", "below torch.save %", "longer step %"), rows)
    print()
    head = (
        "state_mb",
        "step_s",
        "step_s_per_gb",
        "memcpy_gb_s",
        "copied_and_sealed_gb_s",
        "torch_load_s",
        "restored_s",
    )
    table(
        (*head, "torch_load_over_restored"),
        [tuple(one[key] for key in (*head, "torch_load_over_restored")) for one in found],
    )
    print()
    results = [{key: _rounded(value) for key, value in one.items()} for one in found]
    final_line({"bench": "checkpoint", "machine": here, "load": machine.load(), "results": results})
    dist.destroy_process_group()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item, 3) for key, item in value.items()}
    return rounded(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
