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
- restore: until all tensors are there as torch tensors, their checksums verified where there are any: asked for by who
  saved it (all of the check is then waited for), and by a successor that comes as late as a restart takes.
- peer: a copy to another node's vault, and the state from there on a node that has nothing; beside it, what sendfile
  reaches.
- the paper's ratio: the overhead where a step takes as long for each byte of state as ByteRobust's do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import machine
import restores
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import vaults
from report import final_line, median, rounded, table, tell
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

MB = 1_000_000
TENSOR_BYTES = 16 * MB
"""A layer of a model; the state has as many as it takes."""
COMPUTE_S_PER_GB = 1.0
COMPUTE_MIN_S = 0.1
PAPER_S_PER_GB = 9.2
"""ByteRobust's tightest ratio of step time to the state that a rank saves: docs/benchmarks.md derives it."""
WARM_UP = 5
"""Saves until a new vault has all its segments, in huge pages: once in a job's life, and not what a save costs."""
PAPER_BYTES = 96 * MB
PEER_BYTES_MAX = 500 * MB
"""Three vaults have it three times each."""
STATES = 4
"""Parameter, master copy and two Adam moments, fp32."""


class Job:
    """A model that fills `nbytes` with parameters and optimizer states, and trains without learning anything."""

    def __init__(self, nbytes: int, compute_s_per_gb: float = COMPUTE_S_PER_GB) -> None:
        count = max(1, nbytes // STATES // TENSOR_BYTES)
        elements = nbytes // STATES // count // 4
        names = ("parameter", "master", "exp_avg", "exp_avg_sq")
        self.state: dict[str, Any] = {
            name: {f"layer{index}": torch.full((elements,), 1.0) for index in range(count)} for name in names
        }
        self.tensors = [tensor for group in self.state.values() for tensor in group.values()]
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)
        self.compute_s = max(COMPUTE_MIN_S, compute_s_per_gb * self.nbytes / 1e9)
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
    with vaults.vault(directory) as node:
        client = node.rank()

        def save(step: int, state: dict[str, Any]) -> Callable[[], None]:
            client.save(step, state)
            return lambda: None

        yield save
        client.steps()
        client.close()


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


def overhead_at(nbytes: int, s_per_gb: float, pairs: int, directory: Path, threads: int) -> dict[str, float]:
    """Steps with a save and without in turns, each pair compared; steps are as long as `s_per_gb` makes them.

    `threads` is how many cores the training keeps busy: the vault copies on what is left, or takes turns with it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _overhead(Job(nbytes, s_per_gb), pairs, directory) | {"training_threads": threads}
    finally:
        torch.set_num_threads(before)


def _overhead(job: Job, pairs: int, directory: Path) -> dict[str, float]:
    longer: list[float] = []
    steps: list[float] = []
    with holdfast_memory(directory) as save:
        for number in range(-WARM_UP, pairs):
            took: dict[bool, float] = {}
            for is_saved in (True, False) if number % 2 else (False, True):
                began = time.perf_counter()
                if is_saved:
                    save(number, job.state)
                job.compute()
                job.optimize()
                took[is_saved] = time.perf_counter() - began
            if number >= 0:
                longer.append(100 * (took[True] / took[False] - 1))
                steps.append(took[False])
    step_s = median(steps) or 0.0
    return {
        "state_mb": job.nbytes // MB,
        "step_s": step_s,
        "step_s_per_gb": step_s / (job.nbytes / 1e9),
        "pairs": pairs,
        "overhead_percent": median(longer) or 0.0,
        "standard_error": 1.25 * statistics.stdev(longer) / len(longer) ** 0.5,
    }


def measure(nbytes: int, directory: Path, rounds: int, steps: int) -> dict[str, Any]:
    job = Job(nbytes)
    blocked: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    whole: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        names = list(CONTENDERS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            some_blocked, some_whole = run(name, job, directory, steps, warm_up=WARM_UP)
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
        **restores.local(job.state, job.nbytes, directory),
        **(restores.from_a_peer(job.state, job.nbytes, directory) if job.nbytes <= PEER_BYTES_MAX else {}),
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
        pairs = 4 if args.quick else 120
        at_ratio = [
            overhead_at(PAPER_BYTES, PAPER_S_PER_GB, pairs, root, threads)
            for threads in sorted({1, len(os.sched_getaffinity(0))})
        ]
    finally:
        shutil.rmtree(root)

    print(f"\n{machine.in_words(here)}\n\ntraining stands still, ms a step; and its share of what torch.save takes:")
    rows: list[tuple[object, ...]] = []
    for one in found:
        for name in list(CONTENDERS)[1:]:
            ms, all_of = one["blocked_ms"][name], one["blocked_ms"]["torch.save"]
            rows.append((one["state_mb"], name, ms, 100 * (1 - ms / all_of), one["overhead_percent"][name]))
    table(("MB", "by", "blocked ms", "below torch.save %", "longer step %"), rows)
    print("\ncopy and restore:")
    _table_of(found, ("state_mb", *(key for key in found[0] if key in restores.FIGURES)))
    print("\nat the paper's ratio, steps with and without a save in turns:")
    _table_of(at_ratio, tuple(at_ratio[0]))
    print()
    results = [{key: _rounded(value) for key, value in one.items()} for one in found]
    final_line(
        {"bench": "checkpoint", "machine": here, "load": machine.load(), "results": results, "paper_ratio": at_ratio}
    )
    dist.destroy_process_group()


def _table_of(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
    for some in (keys[:1] + keys[at : at + 6] for at in range(1, len(keys), 6)):
        table(some, [tuple(row.get(key) for key in some) for row in rows])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item, 3) for key, item in value.items()}
    return rounded(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
