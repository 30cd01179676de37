"""What Holdfast's hooks add to a step of 2 ms, in the rank itself: beside the same script without them, in turns.

    python bench/hooks.py            four minutes
    python bench/hooks.py --quick    two minutes

Two processes of one script are alive at once, a rank as torchrun starts it and a rank with Holdfast's hooks, ledger and
ring of collectives. They take turns, a block of steps each, and the other one waits for its turn. Three loops:
    ddp          DDP, which reduces gradients by itself
    collectives  ten all_reduce and a barrier, called by the script
    many         200 all_reduce of small tensors, as where each parameter has its own
The difference of two such processes is off by some percent, by where their memory lies: so several pairs of them are
started. The processor's time is measured beside it: it also holds on a machine with other work. `python -m
torch.distributed.run` itself is not there; it does nothing while a script trains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import machine
from report import final_line, rounded, table, tell
from turns import standard_error

BLOCK_STEPS = 100
BLOCKS, BLOCKS_QUICK = 12, 8
PAIRS, PAIRS_QUICK = 6, 3
LOOPS = ("ddp", "collectives", "many")

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)])
model = DDP(net) if sys.argv[1] == "ddp" else net
optimizer = torch.optim.AdamW(net.parameters())
x, y = torch.randn(64, 128), torch.randn(1000)

def step():
    loss = model(x).square().mean()
    loss.backward()
    if sys.argv[1] != "ddp":
        for _ in range(10 if sys.argv[1] == "collectives" else 200):
            dist.all_reduce(y)
        dist.barrier()
    optimizer.step()
    optimizer.zero_grad()

def block(steps):
    began, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps, (time.process_time() - used) / steps

block(100)
for line in sys.stdin:
    print(*block(int(line)), flush=True)
"""


class Block(NamedTuple):
    """Seconds of a step, and of the processor's time that it used."""

    step_s: float
    cpu_s: float


class Rank:
    """A process that makes blocks of steps on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def block(self) -> Block:
        """Make a block of steps."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{BLOCK_STEPS}\n")
        self._process.stdin.flush()
        step_s, cpu_s = map(float, self._process.stdout.readline().split())
        return Block(step_s, cpu_s)


@contextlib.contextmanager
def started(script: Path, loop: str, meeting: Path, ledger: Path | None) -> Iterator[Rank]:
    environment = os.environ | {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script), loop, str(meeting)]
    if ledger is not None:
        environment |= {"HOLDFAST_LEDGER": str(ledger), "HOLDFAST_GENERATION": "1"}
        command[1:1] = ["-m", "holdfast.trainer.rank"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        try:
            yield Rank(process)
        finally:
            process.kill()


def compare(root: Path, loop: str, pair: int, blocks: int) -> list[tuple[Block, Block]]:
    """Return blocks without hooks and with them, of a pair of processes."""
    script = root / "script.py"
    script.write_text(SCRIPT)
    name = f"{loop}-{pair}"
    with (
        started(script, loop, root / f"plain-{name}", None) as plain,
        started(script, loop, root / f"hooked-{name}", root / f"ledger-{name}") as hooked,
    ):
        taken = []
        for number in range(blocks):
            first, second = (plain, hooked) if number % 2 else (hooked, plain)
            took = {first: first.block(), second: second.block()}
            taken.append((took[plain], took[hooked]))
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{PAIRS_QUICK} pairs of {BLOCKS_QUICK} blocks")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="only this one; may be given several times")
    args = parser.parse_args()
    pairs, blocks = (PAIRS_QUICK, BLOCKS_QUICK) if args.quick else (PAIRS, BLOCKS)
    here = machine.describe()
    tell(machine.in_words(here))
    rows, results = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for loop in args.loop or LOOPS:
            plain: list[Block] = []
            over: list[float] = []
            used: list[float] = []
            for pair in range(pairs):
                taken = compare(Path(folder), loop, pair, blocks)
                plain += [one for one, _ in taken]
                over.append(1e6 * median(hooked.step_s - one.step_s for one, hooked in taken))
                used.append(1e6 * median(hooked.cpu_s - one.cpu_s for one, hooked in taken))
            found = {
                "step_ms": rounded(1000 * median(one.step_s for one in plain), 3),
                "over_us": rounded(median(over), 1),
                "standard_error_us": rounded(standard_error(over), 1),
                "cpu_ms": rounded(1000 * median(one.cpu_s for one in plain), 3),
                "cpu_over_us": rounded(median(used), 1),
                "cpu_standard_error_us": rounded(standard_error(used), 1),
            }
            results[loop] = {**found, "pairs_us": [round(one, 1) for one in over]}
            rows.append((loop, *found.values(), pairs, machine.load()))
    print(f"\n{machine.in_words(here)}\n")
    table(("loop", "ms a step", "hooks add us", "+-", "CPU ms a step", "hooks add us", "+-", "pairs", "load"), rows)
    final_line({"bench": "hooks", "machine": here, "load": machine.load(), "results": results})


if __name__ == "__main__":
    main()
