"""What an undisturbed step costs under Holdfast, against torchrun: the same script, in slices of the same minutes.

    python bench/overhead.py            40 rounds; some 7 minutes on two cores
    python bench/overhead.py --quick    8 rounds

The difference is to be below 1 %, which is less than a machine varies by itself from one minute to the next. So three
jobs are alive at the same time: one on Holdfast and two under torchrun, A and B. They take turns of 1.5 s; whoever
waits is stopped as a whole (SIGSTOP): launcher, ranks, and for Holdfast all its services, Postgres and NATS.
A round gives Holdfast against the mean of A and B, and A against B (A/A): what is within that is no difference.
What the cluster uses of the processors is measured as well; that is almost free of such noise.
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
from typing import NamedTuple

import machine
from launchers import Cluster, LauncherFailed, Place, cluster, torchrun
from records import Records
from report import final_line, median, rounded, table, tell

START_S = 120.0
WARM_UP_STEPS = 30
SLICE_S = 1.5
"""A stopped cluster is silent for two slices, well below the time after which a node counts as lost."""
SETTLE_S = 0.2
STEPS_MIN = 5
SHAPE = ("--ckpt-every", "0", "--width", "512", "--layers", "6", "--batch", "256")
CPU_OF = ("controller", "standby", "analyzer", "ckpt", "historian", "nats")


class Contender:
    """A running job, with everything that belongs to its launcher."""

    def __init__(self, name: str, launcher: int, records: Records) -> None:
        self.name = name
        self.records = records
        self._launcher = launcher
        self._pids: list[int] = []

    def pause(self) -> None:
        """Stop all of it, parents first: so none is started meanwhile."""
        self._pids = [self._launcher, *machine.descendants(self._launcher)]
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def slice(self) -> list[float]:
        """Run for a slice; gives the times of rank 0's steps that lie wholly within it, in seconds."""
        self.resume()
        began = time.time()
        time.sleep(SLICE_S)
        ended = time.time()
        self.pause()
        self.records.read()
        stamps = [step.at for step in self.records.lives[0][-1].steps if began + SETTLE_S <= step.at <= ended]
        return [after - before for before, after in pairwise(stamps)]

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Round(NamedTuple):
    """One slice of each: the median and the mean step in seconds."""

    medians: dict[str, float]
    means: dict[str, float]


@contextlib.contextmanager
def contenders(running: Cluster, root: Path, world_size: int) -> Iterator[list[Contender]]:
    """Three jobs, all of them stopped; they have done their first steps one after the other."""
    with contextlib.ExitStack() as stack:
        found: list[Contender] = []

        def add(name: str, launcher: int, place: Place) -> None:
            records = Records(place.record, world_size)
            contender = Contender(name, launcher, records)
            records.await_generation(START_S, steps=WARM_UP_STEPS)
            contender.pause()
            # What is stopped does not hear that it shall end.
            stack.callback(contender.resume)
            found.append(contender)

        place = Place.fresh(root / str(world_size), "holdfast")
        supervisor = running.info.pid
        assert supervisor is not None
        job = f"overhead-{world_size}"
        running.submit(job, place, 1, world_size, *SHAPE)
        stack.callback(running.stop, job)
        add("holdfast", supervisor, place)
        for letter in "AB":
            place = Place.fresh(root / str(world_size), f"torchrun-{letter}")
            process = stack.enter_context(torchrun(world_size, place, *SHAPE, restarts=0))
            # It would be lost if the others took long to start.
            with _kept_awake(found[0]):
                add(f"torchrun {letter}", process.pid, place)
        yield [found[1], found[0], found[2]]


@contextlib.contextmanager
def _kept_awake(contender: Contender) -> Iterator[None]:
    contender.resume()
    yield
    contender.pause()


def measure(running: Cluster, root: Path, world_size: int, rounds: int) -> tuple[list[Round], dict[str, float]]:
    """The rounds, and the part of one core that each process of the cluster used while it ran."""
    found: list[Round] = []
    used: dict[str, float] = {}
    ran_s = 0.0
    with contenders(running, root, world_size) as jobs:
        for number in range(rounds):
            medians, means = {}, {}
            for job in jobs[number % 3 :] + jobs[: number % 3]:
                before = _cpu(running) if job.name == "holdfast" else {}
                times = job.slice()
                if before:
                    ran_s += SLICE_S
                    for name, now in _cpu(running).items():
                        used[name] = used.get(name, 0.0) + now - before[name]
                if len(times) < STEPS_MIN:
                    raise LauncherFailed(f"{job.name} did {len(times)} steps in a slice of {SLICE_S} s: too few")
                medians[job.name] = median(times) or 0.0
                means[job.name] = sum(times) / len(times)
            found.append(Round(medians, means))
            if (number + 1) % 4 == 0:
                steps = ", ".join(f"{name} {1000 * value:.2f}" for name, value in medians.items())
                tell(f"[{number + 1}/{rounds}] {world_size} ranks, ms a step: {steps} (load {machine.load()})")
    return found, {name: seconds / ran_s for name, seconds in used.items()}


def _cpu(running: Cluster) -> dict[str, float]:
    pids = running.pids()
    found = {name: machine.cpu_s(pids[name]) for name in CPU_OF}
    found["agent"] = machine.cpu_s(pids["node-0"])
    found["zygote"] = machine.cpu_s(pids["zygote-node-0"])
    found["postgres"] = sum(machine.cpu_s(pid) for pid in [pids["postgres"], *machine.children(pids["postgres"])])
    return found


def compared(rounds: list[Round]) -> dict[str, dict[str, float | None]]:
    """Holdfast against torchrun, and torchrun against itself, in percent of a step; medians over the rounds."""
    result: dict[str, dict[str, float | None]] = {}
    for statistic in ("medians", "means"):
        over, noise = [], []
        for one in rounds:
            times: dict[str, float] = getattr(one, statistic)
            first, second = times["torchrun A"], times["torchrun B"]
            baseline = (first + second) / 2
            over.append(100 * (times["holdfast"] / baseline - 1))
            noise.append(100 * (first - second) / baseline)
        result[statistic] = {
            "holdfast_over_torchrun_percent": rounded(median(over), 2),
            "holdfast_standard_error": rounded(_standard_error(over), 2),
            "a_over_b_percent": rounded(median(noise), 2),
            "a_over_b_standard_error": rounded(_standard_error(noise), 2),
        }
    return result


def _standard_error(values: list[float]) -> float:
    """Of their median, from the spread of the middle half, which a few disturbed rounds do not change."""
    ordered = sorted(values)
    middle_half = ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]
    return float(1.2533 * (middle_half / 1.349) / len(ordered) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 rounds")
    parser.add_argument("--rounds", type=int)
    here = machine.describe()
    cores = int(str(here["cores"]))
    parser.add_argument("--ranks", default=f"{cores},{max(1, cores - 1)}", help="numbers of ranks, with commas")
    args = parser.parse_args()
    rounds = args.rounds or (8 if args.quick else 40)
    tell(machine.in_words(here))

    results: dict[int, dict[str, object]] = {}
    shown: list[tuple[object, ...]] = []
    usages: dict[int, dict[str, float]] = {}
    with cluster(1) as (running, root):
        for world_size in dict.fromkeys(int(number) for number in args.ranks.split(",")):
            found, used = measure(running, root, world_size, rounds)
            comparison, load = compared(found), machine.load()
            usages[world_size] = {name: round(100 * part, 2) for name, part in used.items()}
            step_ms = rounded(median([1000 * one.medians["torchrun A"] for one in found]), 2)
            results[world_size] = {
                "step_ms": step_ms,
                "load": load,
                "rounds": len(found),
                "compared": comparison,
                "cpu_percent_of_a_core": usages[world_size],
            }
            shown += [(world_size, step_ms, name, *row.values(), load) for name, row in comparison.items()]

    print(f"\n{machine.in_words(here)}\n")
    table(("ranks", "step ms", "of a slice's", "Holdfast over torchrun %", "+-", "A over B %", "+-", "load"), shown)
    print("\nwhile a job trains, percent of one core:")
    names = next(iter(usages.values()))
    table(("ranks", *names, "all"), [(size, *of.values(), round(sum(of.values()), 2)) for size, of in usages.items()])
    print()
    final_line({"bench": "overhead", "machine": here, "load": machine.load(), "results": results})


if __name__ == "__main__":
    main()
