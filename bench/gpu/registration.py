"""What pinning, copies and a context cost on this machine, without Holdfast's own path: command plan A.

    python bench/gpu/registration.py                 four minutes on a machine with a GPU
    python bench/gpu/registration.py --quick         a minute
    python bench/gpu/registration.py --device sim    how it runs, on the test accelerator; no figures

- registration: seconds to pin shared memory that another process could have made (as the vault's segments are), in
  small and in huge pages, whole and in pieces of 1 GiB; and what kernels take meanwhile.
- links: GB/s from and to the device by size of copy: pinned by torch, shared memory pinned here, pageable; in memory of
  each NUMA node.
- contexts: seconds and device memory of a process that has imported torch, has a context, has multiplied matrices.
- small copies: host microseconds for each of many copies: one call each, foreach, a graph.

Each ends with one table; the last line is JSON. How to read it: docs/gpu.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from contexts import contexts
from device import GB, MIB, Part, Parts, arguments, available_bytes, described, median_s, numa_nodes, seconds, use
from report import median, percentile
from show import show

from holdfast.node.vault.huge_pages import collapse
from holdfast.node.vault.mmap_file import map_file
from holdfast.trainer.device.adapters import NotRegistered, adapter_of
from holdfast.trainer.device.landings import PIECE_BYTES

MEMORY_SHARE = 1 / 3
"""Largest share of the host's available memory that one measurement takes."""


class Sizes(NamedTuple):
    registered: tuple[int, ...]
    copied: int
    slices: tuple[int, ...]
    tensors: tuple[int, ...]
    matrix: int
    runs: int


FULL = Sizes(
    registered=(1 << 30, 4 << 30, 16 << 30),
    copied=1 << 30,
    slices=(256 << 10, MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 256 * MIB),
    tensors=(10, 100, 1000, 5000),
    matrix=4096,
    runs=5,
)
QUICK = FULL._replace(registered=(1 << 30,), copied=256 * MIB, tensors=(10, 1000), runs=3)
SIM = Sizes((4 * MIB,), 4 * MIB, (256 << 10, MIB), (10, 50), 64, 1)


def main() -> None:
    parser = arguments(__doc__ or "")
    args = parser.parse_args()
    device = use(args.device)
    here = described(device)
    sizes = SIM if here["is_simulated"] else QUICK if args.quick else FULL
    parts = [
        Part("registration", "pinning shared memory, seconds", lambda: registrations(device, sizes)),
        Part("beside_kernels", "a kernel while memory is pinned, ms", lambda: beside_kernels(device, sizes)),
        Part("links", "copies by size, GB/s", lambda: links(device, sizes)),
        Part("small_copies", "many small copies to pinned memory, host us for each", lambda: small(device, sizes)),
        Part("contexts", "a process, until it has ...", lambda: contexts(device)),
    ]
    results = Parts(args.only)
    for part in parts:
        results.run(part)
    show("gpu/registration", here, parts, results)


@contextlib.contextmanager
def shared(nbytes: int, *, is_huge: bool) -> Iterator[torch.Tensor]:
    """Yield memory of a file without a name, as a vault's segment is, mapped and in use."""
    descriptor = os.memfd_create("bench")
    try:
        os.ftruncate(descriptor, nbytes)
        os.posix_fallocate(descriptor, 0, nbytes)
        memory = torch.frombuffer(map_file(descriptor, nbytes, private=False), dtype=torch.uint8)
    finally:
        os.close(descriptor)
    if is_huge:
        collapse(memory.data_ptr(), nbytes)
    memory[:: os.sysconf("SC_PAGE_SIZE")] = 0
    yield memory


@contextlib.contextmanager
def registered(device: torch.device, memory: torch.Tensor, piece: int = PIECE_BYTES) -> Iterator[float]:
    """Yield how long it took to pin this memory, in pieces of a size."""
    adapter, pinned = adapter_of(device.type), list[int]()
    base, nbytes = memory.data_ptr(), memory.numel()
    try:
        began = time.perf_counter()
        for at in range(0, nbytes, piece):
            adapter.register(base + at, min(piece, nbytes - at))
            pinned.append(base + at)
        yield time.perf_counter() - began
    finally:
        for address in pinned:
            adapter.unregister(address)


def registrations(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for nbytes in sizes.registered:
        if nbytes > available_bytes() * MEMORY_SHARE:
            rows.append({"gib": nbytes / 2**30, "reason": "too little memory of the host is available"})
            continue
        for is_huge in (False, True):
            # One piece, and pieces as the checkpoint path has them.
            for piece in dict.fromkeys((nbytes, min(PIECE_BYTES, nbytes))):
                with shared(nbytes, is_huge=is_huge) as memory:
                    rows.append(_registration(device, memory, piece) | {"huge_pages": is_huge})
    return rows


def _registration(device: torch.device, memory: torch.Tensor, piece: int) -> dict[str, Any]:
    row: dict[str, Any] = {"gib": memory.numel() / 2**30, "piece_gib": piece / 2**30}
    try:
        with registered(device, memory, piece) as took_s:
            source = torch.empty(min(memory.numel(), 64 * MIB), dtype=torch.uint8, device=device)
            began = time.perf_counter()
            memory[: source.numel()].copy_(source, non_blocking=True)
            queued_s = time.perf_counter() - began
            torch.accelerator.synchronize()
            row |= {"s": took_s, "s_per_gb": took_s * GB / memory.numel(), "is_pinned": memory.is_pinned()}
            row |= {"copy_queued_us": 1e6 * queued_s}
            began = time.perf_counter()
        row["undone_s"] = time.perf_counter() - began
    except NotRegistered as error:
        row["reason"] = str(error)
    return row


def beside_kernels(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    """Time matrix products one by one, alone and while another thread pins memory."""
    nbytes = sizes.registered[0]
    one = torch.randn(sizes.matrix, sizes.matrix, device=device)
    with shared(nbytes, is_huge=True) as memory:
        alone = [seconds(lambda: one @ one) for _ in range(20 * sizes.runs)]
        beside, ended, failure = list[float](), threading.Event(), list[Exception]()

        def pin() -> None:
            try:
                for _ in range(2 * sizes.runs):
                    with registered(device, memory):
                        pass
            except NotRegistered as error:
                failure.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=pin)
        thread.start()
        while not ended.is_set() or not beside:
            beside.append(seconds(lambda: one @ one))
        thread.join()
    if failure:
        raise failure[0]
    named = (("alone", alone), ("while memory is pinned", beside))
    return [
        {"kernels": name, "median": _ms(median(it)), "p99": _ms(percentile(it, 99)), "max": _ms(max(it))}
        for name, it in named
    ]


def _ms(value: float | None) -> float:
    return 1000 * (value or 0.0)


def links(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    """Measure copies of every size, from and to every kind of memory, of every NUMA node."""
    rows: list[dict[str, Any]] = []
    on_device = torch.zeros(sizes.copied, dtype=torch.uint8, device=device)
    nodes = numa_nodes()
    for node, cpus in nodes.items() if len(nodes) > 1 else [(None, frozenset[int]())]:
        with _on(cpus), contextlib.ExitStack() as stack:
            hosts = {"pinned by torch": torch.zeros(sizes.copied, dtype=torch.uint8).pin_memory()}
            memory = stack.enter_context(shared(sizes.copied, is_huge=True))
            with contextlib.suppress(NotRegistered):
                stack.enter_context(registered(device, memory))
                hosts["shared, pinned"] = memory
            hosts["pageable"] = torch.zeros(sizes.copied, dtype=torch.uint8)
            for name, host in hosts.items():
                for slice_bytes in sizes.slices:
                    to_host = median_s(lambda h=host, s=slice_bytes: _slices(on_device, h, s), sizes.runs)
                    to_device = median_s(lambda h=host, s=slice_bytes: _slices(h, on_device, s), sizes.runs)
                    row = {"numa_node": node, "memory": name, "slice_mib": slice_bytes / MIB}
                    row |= {"to_host": sizes.copied / to_host / GB, "to_device": sizes.copied / to_device / GB}
                    rows.append(row)
            torch.accelerator.synchronize()
        # What torch keeps for later lies on this node.
        del hosts, host, memory
        if hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()
    return rows


def _slices(source: torch.Tensor, target: torch.Tensor, slice_bytes: int) -> None:
    for at in range(0, source.numel(), slice_bytes):
        target[at : at + slice_bytes].copy_(source[at : at + slice_bytes], non_blocking=True)


@contextlib.contextmanager
def _on(cpus: frozenset[int]) -> Iterator[None]:
    """Run on these processors, so that memory that is used first here is of their node; empty: anywhere."""
    before = os.sched_getaffinity(0)
    if cpus & before:
        os.sched_setaffinity(0, cpus & before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def small(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for count in sizes.tensors:
        sources = [torch.zeros(1024, device=device) for _ in range(count)]
        targets = list(torch.zeros(count, 1024).pin_memory().unbind())

        def one_by_one(sources: list[torch.Tensor] = sources, targets: list[torch.Tensor] = targets) -> None:
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)

        row: dict[str, Any] = {"copies": count, "one_by_one": _queued_us(one_by_one, count, sizes.runs)}
        row["foreach"] = _queued_us(
            lambda t=targets, s=sources: torch._foreach_copy_(t, s, non_blocking=True), count, sizes.runs
        )
        try:
            graph = torch.accelerator.Graph()
            with torch.Stream(device), graph:
                one_by_one()
            row["graph"] = _queued_us(graph.replay, count, sizes.runs)
        except (AttributeError, RuntimeError) as error:
            row["no_graph"] = str(error).splitlines()[0]
        rows.append(row)
    return rows


def _queued_us(work: Any, count: int, runs: int) -> float:
    """Return the host's time for each copy, until all are queued."""
    took = list[float]()
    for _ in range(runs + 1):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    torch.accelerator.synchronize()
    return 1e6 * (median(took[1:]) or 0.0) / count


if __name__ == "__main__":
    main()
