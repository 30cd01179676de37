"""Cost of recording collectives for a rank, and of reading them for its node.

    python bench/interception.py
    python bench/interception.py --quick

A rank alone, with gloo, calls all-reduces with the ring of collectives and without, in turns of a few hundred calls:
the same process, the same calls, and what they take beyond the ring is small, so that the ring's part can be seen. The
share of a step is reckoned from that, for `--calls` collectives in a step of `--step-ms`. The reader is the agent's
(`IterationBook`). All times are on the processor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import machine
import torch.distributed as dist
from report import final_line, rounded, table, tell
from torch import zeros
from turns import standard_error

from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import bind, binding
from holdfast_agent.slow_tests.rings import IterationBook

CALLS_IN_A_TURN = 300
KINDS = 17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--calls", type=int, default=60, help="collectives in a step")
    parser.add_argument("--step-ms", type=float, default=160.0, help="what a step takes")
    args = parser.parse_args()
    here = machine.describe()
    tell(machine.in_words(here))
    turns = 20 if args.quick else 200
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        ledger = Path(folder) / "rank-0.ledger"
        ring = RingWriter(ring_path(ledger), rank=0, generation=1)
        bind(LedgerWriter(ledger, rank=0, generation=1), ring)
        install_hooks.install()
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        tensors = [zeros(64 * (1 + kind)) for kind in range(KINDS)]
        book = IterationBook(0, ledger)
        pairs: list[float] = []
        read_s, read = 0.0, 0
        for turn in range(turns):
            took: dict[bool, float] = {}
            for has_ring in (turn % 2 == 0, turn % 2 == 1):
                binding.ring = ring if has_ring else None
                began = time.thread_time()
                for call in range(CALLS_IN_A_TURN):
                    dist.all_reduce(tensors[call % KINDS])
                took[has_ring] = time.thread_time() - began
            pairs.append(1e6 * (took[True] - took[False]) / CALLS_IN_A_TURN)
            began = time.process_time()
            book.new_iterations()
            read_s += time.process_time() - began
            read += CALLS_IN_A_TURN
        dist.destroy_process_group()
    us_per_call, us_per_record = median(pairs), 1e6 * read_s / read
    result = {
        "us_per_call": rounded(us_per_call, 2),
        "standard_error": rounded(standard_error(pairs), 2),
        "share_of_step_percent": rounded(100 * us_per_call * args.calls / (1000 * args.step_ms), 3),
        "reader_us_per_record": rounded(us_per_record, 2),
        "reader_percent_of_a_core": rounded(100 * us_per_record * args.calls / (1000 * args.step_ms), 3),
    }
    heads = ("us a call", "+-", "% of a step", "reader, us a record", "reader, % of a core", "load")
    table(heads, [(*result.values(), machine.load())])
    settings = {"calls": args.calls, "step_ms": args.step_ms}
    final_line({"bench": "interception", "machine": here, "load": machine.load(), "results": result | settings})


if __name__ == "__main__":
    main()
