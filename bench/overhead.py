"""What an undisturbed step costs under Holdfast, against torchrun: the same script, in turns, each time started afresh.

    python bench/overhead.py            20 rounds for each number of ranks; some 20 minutes on two cores
    python bench/overhead.py --quick    4 rounds

The difference is to be below 1 %, which is less than a machine varies by itself: two runs of the very same command
differ by as much for as long as they live (where their memory happens to lie), and the machine changes from minute to
minute. So a round is one fresh run of each, the first to go changing from round to round; the result is the median over
the rounds. How much one torchrun differs from the next is shown beside it: what is within that is no difference.

While torchrun's turn lasts, the whole cluster is stopped (SIGSTOP): all of its cost, services, Postgres and NATS too,
falls into Holdfast's turn, as on a machine that holds everything. On a node of a real cluster only the agent does.
What they use of the processors is shown as well, and is almost free of noise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import machine
from launchers import Cluster, LauncherFailed, Place, cluster, torchrun
from records import Records
from report import final_line, median, rounded, table, tell

START_S = 120.0
WARM_UP_STEPS = 40
TURN_S = 6.0
STEPS_MIN = 30
SHAPE = ("--ckpt-every", "0", "--width", "512", "--layers", "6", "--batch", "256")
CPU_OF = ("controller", "standby", "analyzer", "ckpt", "historian", "nats")


class Round:
    """One run of each: the median step of rank 0 in seconds, and what the cluster's processes used of a core."""

    def __init__(self, torchrun_s: float, holdfast_s: float, used: dict[str, float]) -> None:
        self.torchrun_s = torchrun_s
        self.holdfast_s = holdfast_s
        self.used = used

    @property
    def over_percent(self) -> float:
        return 100 * (self.holdfast_s / self.torchrun_s - 1)


@contextlib.contextmanager
def stopped(running: Cluster) -> Iterator[None]:
    """All processes of the cluster stand still; parents are stopped first, so that none is started meanwhile."""
    supervisor = running.info.pid
    assert supervisor is not None
    pids = [supervisor, *machine.descendants(supervisor)]
    try:
        send(signal.SIGSTOP, pids)
        yield
    finally:
        send(signal.SIGCONT, pids)


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def turn_of_torchrun(place: Place, world_size: int) -> float:
    with torchrun(world_size, place, *SHAPE, restarts=0):
        return step_s(Records(place.record, world_size), "torchrun")


def turn_of_holdfast(running: Cluster, job: str, place: Place, world_size: int) -> tuple[float, dict[str, float]]:
    running.submit(job, place, 1, world_size, *SHAPE)
    try:
        records = Records(place.record, world_size)
        records.await_generation(START_S, steps=WARM_UP_STEPS)
        before, began = cpu_s(running), time.monotonic()
        found = step_s(records, "holdfast")
        lasted_s = time.monotonic() - began
        used = {name: (now - before[name]) / lasted_s for name, now in cpu_s(running).items()}
    finally:
        running.stop(job)
    return found, used


def step_s(records: Records, name: str) -> float:
    """The median duration of rank 0's steps in a turn, in seconds."""
    records.await_generation(START_S, steps=WARM_UP_STEPS)
    began = time.time()
    time.sleep(TURN_S)
    records.read()
    stamps = [step.at for step in records.lives[0][-1].steps if step.at >= began]
    if len(stamps) < STEPS_MIN:
        raise LauncherFailed(f"{name} did {len(stamps)} steps in {TURN_S} s: too few")
    return median([after - before for before, after in pairwise(stamps)]) or 0.0


def cpu_s(running: Cluster) -> dict[str, float]:
    """What each process of the cluster has used of the processors, in seconds."""
    pids = running.pids()
    found = {name: machine.cpu_s(pids[name]) for name in CPU_OF}
    found["agent"] = machine.cpu_s(pids["node-0"])
    found["zygote"] = machine.cpu_s(pids["zygote-node-0"])
    found["postgres"] = sum(machine.cpu_s(pid) for pid in [pids["postgres"], *machine.children(pids["postgres"])])
    return found


def measure(running: Cluster, root: Path, world_size: int, rounds: int) -> list[Round]:
    found: list[Round] = []
    for number in range(rounds):
        torchrun_s = holdfast_s = 0.0
        used: dict[str, float] = {}
        for name in ("torchrun", "holdfast") if number % 2 else ("holdfast", "torchrun"):
            place = Place.fresh(root, f"{name}-{world_size}-{number}")
            if name == "torchrun":
                with stopped(running):
                    torchrun_s = turn_of_torchrun(place, world_size)
            else:
                holdfast_s, used = turn_of_holdfast(running, f"overhead-{world_size}-{number}", place, world_size)
        found.append(Round(torchrun_s, holdfast_s, used))
        tell(
            f"[{number + 1}/{rounds}] {world_size} ranks, ms a step: torchrun {1000 * torchrun_s:.2f}, "
            f"holdfast {1000 * holdfast_s:.2f}: {found[-1].over_percent:+.2f} % (load {machine.load()})"
        )
    return found


def compared(rounds: list[Round]) -> dict[str, float | None]:
    """Holdfast against torchrun, and each torchrun against the next, in percent of a step; medians over the rounds."""
    over = [one.over_percent for one in rounds]
    noise = [abs(100 * (after.torchrun_s / before.torchrun_s - 1)) for before, after in pairwise(rounds)]
    return {
        "step_ms": rounded(median([1000 * one.torchrun_s for one in rounds]), 2),
        "holdfast_over_torchrun_percent": rounded(median(over), 2),
        "standard_error": rounded(standard_error(over), 2),
        "one_torchrun_from_the_next_percent": rounded(median(noise), 2),
    }


def standard_error(values: list[float]) -> float:
    """Of their median, from the spread of the middle half, which a few disturbed rounds do not change."""
    ordered = sorted(values)
    middle_half = ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]
    return float(1.2533 * (middle_half / 1.349) / len(ordered) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 rounds")
    parser.add_argument("--rounds", type=int)
    here = machine.describe()
    cores = int(str(here["cores"]))
    parser.add_argument("--ranks", default=f"{cores},{max(1, cores - 1)}", help="numbers of ranks, with commas")
    args = parser.parse_args()
    rounds = args.rounds or (4 if args.quick else 20)
    tell(machine.in_words(here))

    results: dict[int, dict[str, object]] = {}
    shown: list[tuple[object, ...]] = []
    usages: dict[int, dict[str, float]] = {}
    with cluster(1) as (running, root):
        for world_size in dict.fromkeys(int(number) for number in args.ranks.split(",")):
            found = measure(running, root, world_size, rounds)
            comparison, load = compared(found), machine.load()
            names = found[0].used
            usages[world_size] = {
                name: round(100 * (median([one.used[name] for one in found]) or 0), 2) for name in names
            }
            results[world_size] = {
                **comparison,
                "load": load,
                "rounds": len(found),
                "cpu_percent_of_a_core": usages[world_size],
            }
            shown.append((world_size, *comparison.values(), load))

    print(f"\n{machine.in_words(here)}\n")
    table(("ranks", "step ms", "Holdfast over torchrun %", "+-", "one torchrun from the next %", "load"), shown)
    print("\nwhile a job trains, percent of one core:")
    names = next(iter(usages.values()))
    table(("ranks", *names, "all"), [(size, *of.values(), round(sum(of.values()), 2)) for size, of in usages.items()])
    print()
    final_line({"bench": "overhead", "machine": here, "load": machine.load(), "results": results})


if __name__ == "__main__":
    main()
