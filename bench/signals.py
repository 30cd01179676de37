"""Cost of reading what ranks print and log, in CPU time of one core.

    python bench/signals.py            20 MB of output of each kind, 50,000 scalars
    python bench/signals.py --quick    2 MB, 5,000 scalars

*Output*: the scan for signatures (`holdfast_agent/plan/log_lines`) over lines as trainers and NCCL print them, in reads
of a line or two, of a page and of all that a pipe holds. One MB a second at x ms a MB is x thousandths of a core.
*Logs*: reading scalars from a TensorBoard and a W&B file of the real writers, repeated. *Search*: one look for the
logs that this process and its children have open.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import machine
from report import final_line, table, tell

from holdfast_agent.plan.log_lines.log_signatures import Scanner
from holdfast_agent.training_logs.open_files import open_logs
from holdfast_agent.training_logs.readings import StepReadings
from holdfast_agent.training_logs.scalars import LogParser
from holdfast_agent.training_logs.tags import Tags
from holdfast_agent.training_logs.tfevents import TfEvents
from holdfast_agent.training_logs.wandb_file import WandbFile

RECORDED = Path(__file__).parents[1] / "tests" / "recorded"
READS = (200, 4_096, 65_536)
SEARCHES = 50


def _trainer(number: int, rng: random.Random) -> str:
    return (
        f" [2026-01-01 10:00:00] iteration {number:8d}/  500000 | consumed samples: {number * 512:12d} |"
        f" elapsed time per iteration (ms): {rng.uniform(900, 1100):.1f} | learning rate: 1.500000E-04 |"
        f" lm loss: {rng.uniform(1, 5):.6E} | grad norm: {rng.random():.3f} | number of nan iterations:   0 |\n"
    )


def _nccl(number: int, rng: random.Random) -> str:
    where = f"node{number % 64}:{number}:{number} [{number % 8}]"
    return f"{where} NCCL INFO Channel {number % 32:02d}/0 : 1[2] -> 3[4] via NET/IB/{rng.randrange(8)}/GDRDMA\n"


def _words(number: int, rng: random.Random) -> str:
    return f"{number} reads shard {rng.randrange(1000)} of the data set in {rng.random():.3f} seconds, and goes on\n"


def _errors(number: int, rng: random.Random) -> str:
    return f"2026-01-01 ERROR worker {rng.randrange(64)}: RuntimeError: request {number} failed, it is tried again\n"


KINDS: dict[str, Callable[[int, random.Random], str]] = {
    "trainer": _trainer,
    "NCCL_DEBUG=INFO": _nccl,
    "words": _words,
    "nothing but errors": _errors,
}


def _output(line: Callable[[int, random.Random], str], size: int) -> bytes:
    rng = random.Random(1)
    few = "".join(line(number, rng) for number in range(5_000)).encode()
    return few * (size // len(few) + 1)


def _scan_ms(data: bytes, read_bytes: int) -> float:
    """Milliseconds of CPU for a MB that comes at a MB a second."""
    found: list[str] = []
    scanner = Scanner(lambda signature, line: found.append(line))
    pieces = [data[at : at + read_bytes] for at in range(0, len(data), read_bytes)]
    began = time.process_time()
    for place, piece in enumerate(pieces):
        scanner.feed(piece, place * read_bytes / 1e6)
    return (time.process_time() - began) * 1e9 / len(data)


def _parse_us(parser: Callable[[], LogParser], name: str, scalars: int) -> float:
    """Microseconds of CPU for a scalar."""
    data = (RECORDED / name).read_bytes()
    done = 0
    began = time.process_time()
    while done < scalars:
        found = parser().feed(data)
        StepReadings(Tags(), "").take(found)
        done += len(found)
    return (time.process_time() - began) * 1e6 / done


def _search_ms() -> float:
    began = time.process_time()
    for _ in range(SEARCHES):
        open_logs({0: os.getpid()})
    return (time.process_time() - began) * 1e3 / SEARCHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 MB, 5,000 scalars")
    args = parser.parse_args()
    size, scalars = (2_000_000, 5_000) if args.quick else (20_000_000, 50_000)
    here = machine.describe()
    scans: dict[str, dict[int, float]] = {}
    for kind, line in KINDS.items():
        tell(f"output: {kind}")
        data = _output(line, size)
        scans[kind] = {read_bytes: round(_scan_ms(data, read_bytes), 2) for read_bytes in READS}
    tell("logs")
    tensorboard_us = round(_parse_us(TfEvents, "events.out.tfevents.recorded", scalars), 1)
    wandb_us = round(_parse_us(WandbFile, "run-recorded.wandb", scalars), 1)
    search_ms = round(_search_ms(), 3)

    print(f"\n{machine.in_words(here)}\n")
    table(
        ("output: ms of CPU for a MB", *(f"reads of {read_bytes:,}" for read_bytes in READS)),
        [(kind, *took.values()) for kind, took in scans.items()],
    )
    print(
        f"\na scalar of a TensorBoard log takes {tensorboard_us} us, of a W&B log {wandb_us} us;"
        f" a search of one process {search_ms} ms\n"
    )
    final_line(
        {
            "bench": "signals",
            "machine": here,
            "scan_ms_per_mb": scans,
            "tensorboard_scalar_us": tensorboard_us,
            "wandb_scalar_us": wandb_us,
            "search_ms": search_ms,
        }
    )


if __name__ == "__main__":
    main()
