"""What an undisturbed step costs under Holdfast, against torchrun: the same script, both alive, in turns of a second.

    python bench/overhead.py            80 rounds for each number of ranks; bench/README.md says how long that takes
    python bench/overhead.py --quick    4 rounds
    python bench/overhead.py --null     torchrun against torchrun in the same way: what the method can resolve

The difference is to be below 1 %, which is less than a machine varies by itself. It changes from one half minute to
the next: so the two take turns (bench/turns.py). And two processes that run the very same loop differ by some percent
for as long as they live, by where their memory happens to lie: so a round is a fresh job of each, and the result is
the median over many rounds, with its standard error from how far the rounds lie apart.

Each round compares in two modes:
    node    what runs on a training node (agent, zygote, vault, ranks) stands still in torchrun's slices; the control
            plane (NATS, Postgres, services, supervisor) runs in both: a real cluster has it on machines of its own
    all     everything of Holdfast stands still in torchrun's slices, so all of its cost falls into Holdfast's
What a job makes the control plane do falls mostly into Holdfast's slices in either mode. What each process uses of the
processors is shown as well, and is almost free of noise.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import machine
from launchers import Place
from opponents import Opponent, opponent, torchrun_job
from records import Records
from report import final_line, rounded, table, tell
from turns import Side, over_percent, take_turns

ROUNDS, SLICES = 80, 3
"""Many rounds with few slices: what differs between two processes is more than what a slice is off by."""
ROUNDS_QUICK, SLICES_QUICK = 4, 6
START_S = 120.0
WARM_UP_STEPS = 60
"""Longer than the second after which an agent forks ranks ahead."""
SHAPE = ("--ckpt-every", "0", "--width", "256", "--layers", "8", "--batch", "1024", "--pin")


class Comparison(NamedTuple):
    """A round in one mode: torchrun's step, how much longer the other's was, what its processes used of a core."""

    torchrun_s: float
    over_percent: float
    used_percent: dict[str, float]


def one_round(other: Opponent, root: Path, world_size: int, number: int, slices: int) -> dict[str, Comparison]:
    """A fresh job of each side, compared in every mode. Which side goes first changes from round to round."""
    places = [Place.fresh(root, f"{world_size}-{number}-{side}") for side in ("torchrun", "other")]
    base_records, other_records = (Records(place.record, world_size) for place in places)
    base_job = torchrun_job(places[0], world_size, SHAPE)
    other_job = other.job(f"overhead-{world_size}-{number}", places[1], world_size, SHAPE)
    with contextlib.ExitStack() as jobs:
        if other_first := number % 2 == 1:
            modes, processes = jobs.enter_context(other_job), jobs.enter_context(base_job)
        else:
            processes, modes = jobs.enter_context(base_job), jobs.enter_context(other_job)
        for records in (base_records, other_records):
            records.await_generation(START_S, steps=WARM_UP_STEPS)
        base = Side("torchrun", base_records, processes)
        found = {}
        for mode, other_processes in modes.items():
            rival = Side(other.name, other_records, other_processes)
            before = other.cpu_s()
            taken = take_turns(rival, base, slices) if other_first else take_turns(base, rival, slices)
            had_s = sum(one.lasted_s for one in taken if one.side == rival.name)
            used = {name: 100 * (now - before[name]) / had_s for name, now in other.cpu_s().items()}
            base_s = median(one.step_s for one in taken if one.side == base.name)
            found[mode] = Comparison(base_s, over_percent(taken, base.name), used)
    return found


def measure(other: Opponent, root: Path, world_size: int, rounds: int, slices: int) -> dict[str, list[Comparison]]:
    """Every round's comparison, by mode."""
    found: dict[str, list[Comparison]] = {}
    for number in range(rounds):
        began = time.monotonic()
        compared = one_round(other, root, world_size, number, slices)
        for mode, comparison in compared.items():
            found.setdefault(mode, []).append(comparison)
        base_ms = 1000 * median(one.torchrun_s for one in compared.values())
        tell(
            f"[{number + 1}/{rounds}] {world_size} ranks, torchrun {base_ms:.2f} ms a step, {other.name} "
            + ", ".join(f"{mode} {one.over_percent:+.2f} %" for mode, one in compared.items())
            + f" ({time.monotonic() - began:.0f} s, load {machine.load()})"
        )
    return found


def summary(rounds: list[Comparison]) -> dict[str, float | None]:
    """The median over the rounds, and how far off it may be.

    The standard error comes from the middle half of the rounds, which a few disturbed ones do not change.
    """
    over = [one.over_percent for one in rounds]
    error = None
    if len(over) > 1:
        lower, _, upper = quantiles(over, n=4, method="inclusive")
        # Of normal values, half lie within 1.349 standard deviations, and a median errs 1.2533 times as much as a mean.
        error = 1.2533 * (upper - lower) / 1.349 / len(over) ** 0.5
    return {
        "step_ms": rounded(1000 * median(one.torchrun_s for one in rounds), 2),
        "over_torchrun_percent": rounded(median(over), 2),
        "standard_error": rounded(error, 2),
    }


def used_percent(rounds: list[Comparison]) -> dict[str, float]:
    """What each process used of a core while its job had its slices."""
    return {name: round(median(one.used_percent[name] for one in rounds), 2) for name in rounds[0].used_percent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds of {SLICES_QUICK} slices")
    parser.add_argument("--null", action="store_true", help="compare torchrun with torchrun")
    parser.add_argument("--rounds", type=int, help="of one fresh job of each side")
    parser.add_argument("--slices", type=int, help="of each side in a round and mode")
    here = machine.describe()
    cores = int(str(here["cores"]))
    parser.add_argument("--ranks", default=f"{cores},{max(1, cores - 1)}", help="numbers of ranks, with commas")
    args = parser.parse_args()
    rounds = args.rounds or (ROUNDS_QUICK if args.quick else ROUNDS)
    slices = args.slices or (SLICES_QUICK if args.quick else SLICES)
    tell(machine.in_words(here))

    results: dict[int, dict[str, object]] = {}
    shown: list[tuple[object, ...]] = []
    usages: dict[int, dict[str, float]] = {}
    with opponent(args.null) as (other, root):
        for world_size in dict.fromkeys(int(number) for number in args.ranks.split(",")):
            found, load = measure(other, root, world_size, rounds, slices), machine.load()
            summaries = {mode: summary(comparisons) for mode, comparisons in found.items()}
            shown += [(world_size, mode, *of.values(), load) for mode, of in summaries.items()]
            results[world_size] = {
                mode: {**of, "rounds_percent": [round(one.over_percent, 2) for one in found[mode]]}
                for mode, of in summaries.items()
            }
            results[world_size] |= {"rounds": rounds, "slices": slices, "load": load}
            # Only where everything stands still in torchrun's slices was all that was used, used in Holdfast's.
            if "all" in found:
                usages[world_size] = used_percent(found["all"])
                results[world_size]["cpu_percent_of_a_core"] = usages[world_size]

    print(f"\n{machine.in_words(here)}\n")
    table(("ranks", "mode", "torchrun, ms a step", f"{other.name} over torchrun %", "+-", "load"), shown)
    if usages:
        print("\nwhile a job trains, percent of one core:")
        names = next(iter(usages.values()))
        rows = [(size, *of.values(), round(sum(of.values()), 2)) for size, of in usages.items()]
        table(("ranks", *names, "all"), rows)
    print()
    final_line({"bench": "overhead", "machine": here, "load": machine.load(), "results": results})


if __name__ == "__main__":
    main()
