"""Processes with the simulated accelerator, in which tests run their functions.

torch has one accelerator per process, streams are threads, and a fork ends the device: so no test loads it where other
tests run. Children stay for all tests of a worker, for they import torch.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest

from tests import accelerator
from tests.accelerator.build import built, why_not

P = ParamSpec("P")
R = TypeVar("R")

COLLECTIVES_S = 60

BUILD_S = 300
"""Limit of a test; the first one of a machine waits for the build."""

on_accelerator = [
    pytest.mark.integration,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(BUILD_S),
]
"""What a file with such tests has as its `pytestmark`."""


class Accelerators:
    """Up to `most` processes with a device each, started when they are first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pools: list[ProcessPoolExecutor] = []

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what a function of a module returns in a child, whose knobs are as at first. Its errors are raised."""
        return self._submit(0, partial(_fresh, partial(function, *args, **kwargs))).result()

    def ranks(self, size: int, backend: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Return what a function returns in each rank of a process group of so many children."""
        with tempfile.TemporaryDirectory() as room:
            work = partial(function, *args, **kwargs)
            return self.each(size, _as_rank, size, backend, Path(room) / "store", work)

    def each(self, size: int, function: Callable[Concatenate[int, P], R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Return what a function returns in each of so many children, which call it at once with their number."""
        futures = [
            self._submit(number, partial(_fresh, partial(function, number, *args, **kwargs))) for number in range(size)
        ]
        return [future.result() for future in futures]

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()

    def _submit(self, child: int, work: Callable[[], R]) -> Future[R]:
        assert child < self._most
        while len(self._pools) <= child:
            spawn = multiprocessing.get_context("spawn")
            self._pools.append(ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin))
        return self._pools[child].submit(work)


@contextmanager
def started_accelerators(most: int = 2) -> Iterator[Accelerators]:
    # Before anything else of a test is there: a vault without an agent ends while a compiler runs.
    built()
    started = Accelerators(most)
    try:
        yield started
    finally:
        started.close()


def _begin() -> None:
    import torch

    # The order in which threads add is the result: with one there is one order, on the device and on the CPU.
    torch.set_num_threads(1)
    accelerator.load()


def _fresh(work: Callable[[], R]) -> R:
    accelerator.reset()
    return work()


def _as_rank(rank: int, size: int, backend: str, store: Path, work: Callable[[], R]) -> R:
    import torch.distributed as dist

    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=COLLECTIVES_S),
    )
    try:
        return work()
    finally:
        dist.destroy_process_group()
