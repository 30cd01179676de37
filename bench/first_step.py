"""From the start of the command to the first step of every rank: `holdfast run` and torchrun.

    python bench/first_step.py            9 starts each, with 1 and with 2 ranks; some 5 minutes on two cores
    python bench/first_step.py --quick    3 starts each, with 2 ranks

Three ways take turns with the same script (bench/workload.py): `torchrun --standalone`; `holdfast run --standalone`,
which starts a cluster for the run; and `holdfast run` on a cluster that is up. Times are from the start of the command
to the ranks' own stamps. How long each command takes for a whole run of one step is measured beside it: a cluster for
one run also has to end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import machine
from launchers import COMMAND_S, WORKLOAD, Cluster, LauncherFailed, Place, cluster
from records import Records
from report import final_line, median, rounded, table, tell

TORCHRUN, OWN, WARM = "torchrun", "holdfast run, cluster for the run", "holdfast run, cluster is up"
AIMS = {OWN: 1.5, WARM: 0.5}
"""Times that torchrun takes."""


class Start(NamedTuple):
    """One run of one step: seconds until all ranks had done it, until the command ended, and the load before."""

    first_step_s: float
    whole_s: float
    load: float


def start(command: list[str], environment: dict[str, str], place: Place, world_size: int) -> Start:
    """Run the workload for one step. Raises LauncherFailed if the command fails."""
    load, began_at, began = machine.load(), time.time(), time.monotonic()
    line = [*command, "--nproc-per-node", str(world_size), str(WORKLOAD), *place.arguments(1)]
    done = subprocess.run(
        line, env=environment, cwd=place.record, capture_output=True, text=True, check=False, timeout=COMMAND_S
    )
    whole_s = time.monotonic() - began
    ran = Records(place.record, world_size).newest()
    # On a busy machine torchrun may be aborted while it ends ("terminate called without an active exception").
    if done.returncode not in (0, -signal.SIGABRT) or ran is None:
        raise LauncherFailed(
            f"{' '.join(line)} ended with {done.returncode}, and {'not ' if ran is None else ''}every rank noted a "
            f"step: {done.stderr[-2000:]}"
        )
    return Start(ran.first_step - began_at, whole_s, load)


def contenders(warm: Cluster) -> dict[str, Callable[[Place, int], Start]]:
    """Return the ways to start the workload."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PET_"))}
    plain |= {"OMP_NUM_THREADS": "1"}
    holdfast = [sys.executable, "-m", "holdfast.cli", "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    on_warm = plain | {"HOLDFAST_DIR": str(warm.directory)}
    return {
        TORCHRUN: lambda place, ranks: start(torchrun, plain, place, ranks),
        OWN: lambda place, ranks: start([*holdfast, "--standalone"], plain, place, ranks),
        WARM: lambda place, ranks: start(holdfast, on_warm, place, ranks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.starts, args.ranks = 3, [2]
    found: dict[tuple[int, str], list[Start]] = {}
    with cluster(1) as (warm, root):
        ways = contenders(warm)
        for world_size in args.ranks:
            for number in range(args.starts):
                for name, run in ways.items():
                    place = Place.fresh(root, f"{world_size}-{number}-{name.replace(' ', '-')}")
                    took = run(place, world_size)
                    found.setdefault((world_size, name), []).append(took)
                    tell(f"{world_size} ranks, {name}: first step {took.first_step_s:.2f} s, load {took.load:.1f}")
    show(found)


def show(found: dict[tuple[int, str], list[Start]]) -> None:
    """Print the figures."""
    rows: list[tuple[object, ...]] = []
    figures: dict[str, object] = {"machine": machine.describe()}
    for (world_size, name), starts in found.items():
        times = [one.first_step_s for one in starts]
        base = median([one.first_step_s for one in found[world_size, TORCHRUN]])
        middle, whole = median(times), median([one.whole_s for one in starts])
        assert base is not None and middle is not None
        rows.append(
            (world_size, name, middle, min(times), max(times), middle / base, whole, AIMS.get(name), len(times))
        )
        key = f"{world_size} {name}"
        figures[key] = {"first_step_s": [rounded(one) for one in times], "whole_s": rounded(whole)}
    table(["ranks", "launcher", "first step s", "min", "max", "/ torchrun", "whole run s", "aim", "starts"], rows)
    final_line(figures)


if __name__ == "__main__":
    main()
