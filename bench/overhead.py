"""Cost of an undisturbed step under Holdfast: against itself without it, and against torchrun.

    python bench/overhead.py            for each number of ranks; bench/README.md says how long that takes
    python bench/overhead.py --quick    few pairs and rounds
    python bench/overhead.py --null     torchrun against torchrun in the same way: what the method can resolve

The difference is to be below 1 %, which is less than a machine varies by itself, from one half minute to the next: so
what is compared takes turns (bench/turns.py).

First one job takes turns with itself: a second as it is; a second *bare*, in which its ranks call nothing of
the library and agent, vault and zygote stand still. The same processes run the same loop on the same memory, so all
that differs is what Holdfast does while a job trains.

What that cannot show is whether ranks that were forked run as fast as ranks that torchrun started. Two processes of the
very same loop differ by some percent for as long as they live, by where their memory happens to lie: so in a round a
fresh job of each side, both alive, take turns, and the result is the median over many rounds. In two modes:
    node    what runs on a training node (agent, zygote, vault, ranks) stands still in torchrun's slices; the control
            plane (NATS, Postgres, services, supervisor) runs in both: a real cluster has it on machines of its own
    all     everything of Holdfast stands still in torchrun's slices, so all of its cost falls into Holdfast's
What each process uses of the processors is shown as well, and is almost free of noise.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import machine
from launchers import Place
from opponents import Holdfast, Opponent, opponent, torchrun_job
from records import Records
from report import final_line, rounded, table, tell
from turns import Side, over_percent, standard_error, stopped, take_turns

ROUNDS, SLICES = 80, 3
"""Many rounds with few slices: what differs between two processes is more than what a slice is off by."""
ROUNDS_QUICK, SLICES_QUICK = 4, 6
PAIRS, PAIRS_QUICK = 300, 20
"""A slice without and a slice with Holdfast, of one job."""
PAIRS_AT_ONCE = 20
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
        base = Side("torchrun", base_records, partial(stopped, processes))
        found = {}
        for mode, other_processes in modes.items():
            rival = Side(other.name, other_records, partial(stopped, other_processes))
            before = other.cpu_s()
            taken = take_turns(rival, base, slices) if other_first else take_turns(base, rival, slices)
            had_s = sum(one.lasted_s for one in taken if one.side == rival.name)
            used = {name: 100 * (now - before[name]) / had_s for name, now in other.cpu_s().items()}
            base_s = median(one.step_s for one in taken if one.side == base.name)
            found[mode] = Comparison(base_s, median(over_percent(taken, base.name)), used)
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


def against_itself(other: Holdfast, root: Path, world_size: int, pairs: int) -> dict[str, float | int | None]:
    """One job, in turns as it is and bare."""
    place, switch = Place.fresh(root, f"{world_size}-itself"), root / f"{world_size}-switch"
    switch.write_bytes(b"0")
    records = Records(place.record, world_size)
    bare = Side("bare", records, contextlib.nullcontext)
    whole = Side(other.name, records, partial(other.bare, switch))
    over: list[float] = []
    bare_s: list[float] = []
    with other.job(f"overhead-{world_size}-itself", place, world_size, (*SHAPE, "--bare-switch", str(switch))):
        records.await_generation(START_S, steps=WARM_UP_STEPS)
        while len(over) < pairs:
            taken = take_turns(bare, whole, PAIRS_AT_ONCE // 2)
            over += over_percent(taken, bare.name)
            bare_s += [one.step_s for one in taken if one.side == bare.name]
            error = standard_error(over)
            tell(
                f"[{len(over)}/{pairs}] {world_size} ranks, bare {1000 * median(bare_s):.2f} ms a step, as it is "
                f"{median(over):+.2f} +-{error or 0:.2f} % (load {machine.load()})"
            )
    return {
        "step_ms": rounded(1000 * median(bare_s), 2),
        "over_bare_percent": rounded(median(over), 2),
        "standard_error": rounded(standard_error(over), 2),
        "pairs": len(over),
    }


def summary(rounds: list[Comparison]) -> dict[str, float | None]:
    """The median over the rounds, and how far off it may be."""
    over = [one.over_percent for one in rounds]
    return {
        "step_ms": rounded(1000 * median(one.torchrun_s for one in rounds), 2),
        "over_torchrun_percent": rounded(median(over), 2),
        "standard_error": rounded(standard_error(over), 2),
    }


def used_percent(rounds: list[Comparison]) -> dict[str, float]:
    """Return the share of a core that each process used while its job had its slices."""
    return {name: round(median(one.used_percent[name] for one in rounds), 2) for name in rounds[0].used_percent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds of {SLICES_QUICK} slices")
    parser.add_argument("--null", action="store_true", help="compare torchrun with torchrun")
    parser.add_argument("--pairs", type=int, help="of one job bare and as it is; 0: leave that comparison out")
    parser.add_argument("--rounds", type=int, help="of one fresh job of each side; 0: leave that comparison out")
    parser.add_argument("--slices", type=int, help="of each side in a round and mode")
    here = machine.describe()
    cores = int(str(here["cores"]))
    parser.add_argument("--ranks", default=f"{cores},{max(1, cores - 1)}", help="numbers of ranks, with commas")
    args = parser.parse_args()
    rounds = args.rounds if args.rounds is not None else ROUNDS_QUICK if args.quick else ROUNDS
    pairs = args.pairs if args.pairs is not None else PAIRS_QUICK if args.quick else PAIRS
    slices = args.slices or (SLICES_QUICK if args.quick else SLICES)
    tell(machine.in_words(here))

    results: dict[int, dict[str, object]] = {}
    itself: list[tuple[object, ...]] = []
    shown: list[tuple[object, ...]] = []
    usages: dict[int, dict[str, float]] = {}
    with opponent(args.null) as (other, root):
        for world_size in dict.fromkeys(int(number) for number in args.ranks.split(",")):
            result = results[world_size] = {}
            if pairs and isinstance(other, Holdfast):
                result["itself"] = own = against_itself(other, root, world_size, pairs)
                itself.append((world_size, *own.values(), machine.load()))
            if not rounds:
                continue
            found = measure(other, root, world_size, rounds, slices)
            for mode, comparisons in found.items():
                of = summary(comparisons)
                shown.append((world_size, mode, *of.values(), machine.load()))
                result[mode] = {**of, "rounds_percent": [round(one.over_percent, 2) for one in comparisons]}
            result |= {"rounds": rounds, "slices": slices, "load": machine.load()}
            # Only where everything stands still in torchrun's slices was all that was used, used in Holdfast's.
            if "all" in found:
                usages[world_size] = used_percent(found["all"])
                result["cpu_percent_of_a_core"] = usages[world_size]

    print(f"\n{machine.in_words(here)}")
    if itself:
        print("\none job, in turns with itself bare:")
        table(("ranks", "bare, ms a step", "as it is, over bare %", "+-", "pairs", "load"), itself)
    if shown:
        print("\nfresh jobs, in turns with torchrun's:")
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
