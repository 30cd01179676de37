"""A rank whose collectives DDP calls: rank 1 works longer in each iteration, and rank 0 waits for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.collectives.ring_reader import RingReader
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import bind

ITERATIONS, ACCUMULATED = 6, 2
WORK_S = 0.1


def main() -> None:
    rank = int(os.environ["RANK"])
    ledger = Path(sys.argv[1]) / f"rank-{rank}.ledger"
    bind(LedgerWriter(ledger, rank=rank, generation=1), RingWriter(ring_path(ledger), rank=rank, generation=1))
    install_hooks.install()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ITERATIONS):
        with model.no_sync():
            for _ in range(ACCUMULATED):
                model(torch.ones(1, 64)).sum().backward()
        time.sleep(WORK_S * rank)
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.step()
    waited = [record for record in RingReader(ring_path(ledger)).records()[0] if record.operation == "all_reduce"]
    # Of the last iteration DDP would tell during the next one.
    assert len(waited) == ITERATIONS - 1, waited
    assert len({record.sequence for record in waited}) == len(waited)
    assert {record.bytes for record in waited} == {4 * (64 * 64 + 64)}
    seconds = [(record.left_ns - record.waited_ns) / 1e9 for record in waited]
    now_ns = time.time_ns()
    assert all(now_ns - 60e9 < record.entered_ns <= record.waited_ns <= record.left_ns < now_ns for record in waited)
    if rank == 0:
        assert sorted(seconds)[len(seconds) // 2] > WORK_S / 2, seconds


if __name__ == "__main__":
    main()
