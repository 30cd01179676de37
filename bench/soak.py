"""200 kills in a row: kill -9 of a random rank of a 4-rank job, each after the incident of the last is closed.

    python bench/soak.py            200 kills; some 10 minutes on two cores
    python bench/soak.py --quick    20 kills

Shows how many were recovered from and how long each took, and whether memory or open files grow. Afterwards the same
number of steps is trained undisturbed, under torchrun, and every step's loss is compared: the loss of each step that
any generation trained has to be equal to the last bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from typing import NamedTuple

import machine
from launchers import Cluster, LauncherFailed, Place, cluster, seconds
from losses import compare, undisturbed
from records import Records, Timeout
from report import final_line, median, percentile, rounded, table, tell

WORLD_SIZE = 4
FAILED_S = 60.0
START_S = 120.0
STEPS_BEFORE_KILL = 20
CKPT_EVERY = 10
JOB = "soak"
WATCHED = ("node-0", "zygote-node-0", "controller", "standby", "historian", "nats")


class Kill(NamedTuple):
    """One kill, and how long it took until all ranks had done a step again."""

    rank: int
    recovery_s: float


class Footprint(NamedTuple):
    """A process at one moment."""

    kills: int
    rss_bytes: int
    files: int


def soak(
    running: Cluster, records: Records, kills_wanted: int, seed: int
) -> tuple[list[Kill], str, dict[str, list[Footprint]]]:
    """The kills that were recovered from, why it ended early if it did, and what the processes weighed."""
    chance = random.Random(seed)
    pids = running.pids()
    kills: list[Kill] = []
    weights: dict[str, list[Footprint]] = {name: [] for name in WATCHED}
    generation = records.await_generation(START_S, steps=STEPS_BEFORE_KILL)
    for number in range(kills_wanted):
        if number % max(1, kills_wanted // 10) == 0:
            _weigh(weights, pids, number)
        victim = chance.randrange(WORLD_SIZE)
        killed_at = time.time()
        os.kill(generation.pids[victim], signal.SIGKILL)
        try:
            generation = records.await_generation(FAILED_S, but=generation.pids)
            kills.append(Kill(victim, generation.first_step - killed_at))
            running.await_event(JOB, "incident_closed", FAILED_S, number + 1)
            records.await_generation(FAILED_S, steps=STEPS_BEFORE_KILL)
        except (Timeout, LauncherFailed) as error:
            return kills, f"kill {number + 1}, of rank {victim}: {error}", weights
        if (number + 1) % 10 == 0:
            last = median([kill.recovery_s for kill in kills[-10:]])
            tell(
                f"[{number + 1}/{kills_wanted}] recovered, the last 10 in {last:.3f} s (median; load {machine.load()})"
            )
    _weigh(weights, pids, kills_wanted)
    return kills, "", weights


def _weigh(weights: dict[str, list[Footprint]], pids: dict[str, int], kills: int) -> None:
    for name, found in weights.items():
        found.append(Footprint(kills, machine.rss_bytes(pids[name]), machine.open_files(pids[name])))


def story(running: Cluster) -> dict[str, object]:
    """Return the recorded recoveries."""
    opened = running.events(JOB, "incident_opened")
    closed = running.events(JOB, "incident_closed")
    lasted = {event["incident"]: seconds(event["at"]) for event in opened}
    return {
        "incidents_opened": len(opened),
        "incidents_recovered": sum(event["outcome"] == "recovered" for event in closed),
        "incidents_with_more_than_one_restart": sum(event["attempts"] > 1 for event in closed),
        "generations": len(running.events(JOB, "generation_started")),
        "incident_median_s": rounded(median([seconds(e["at"]) - lasted[e["incident"]] for e in closed])),
    }


def growth(weights: dict[str, list[Footprint]]) -> dict[str, dict[str, object]]:
    """Return the growth of each process from the second measurement on: the first recoveries fill caches."""
    found: dict[str, dict[str, object]] = {}
    for name, weighed in weights.items():
        first, last = weighed[1] if len(weighed) > 2 else weighed[0], weighed[-1]
        kills = last.kills - first.kills
        found[name] = {
            "first_mib": rounded(weighed[0].rss_bytes / 2**20, 1),
            "last_mib": rounded(last.rss_bytes / 2**20, 1),
            "kib_per_kill": rounded((last.rss_bytes - first.rss_bytes) / 1024 / kills, 2) if kills else None,
            "first_files": weighed[0].files,
            "last_files": last.files,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 kills instead of 200")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=1, help="of the choice of ranks")
    args = parser.parse_args()
    wanted = args.kills or (20 if args.quick else 200)
    here = machine.describe()
    tell(machine.in_words(here))

    with cluster(1) as (running, root):
        place = Place.fresh(root, "soak")
        records = Records(place.record, WORLD_SIZE)
        running.submit(JOB, place, 1, WORLD_SIZE, "--ckpt-every", str(CKPT_EVERY))
        kills, failure, weights = soak(running, records, wanted, args.seed)
        if failure:
            tell(f"ended early: {failure}")
        load = machine.load()
        running.stop(JOB)
        told = story(running)
        records.read()
        steps = max(step.number for step in records.lives[0][-1].steps) if records.lives[0][-1].steps else 0
        tell(f"trains {steps} steps undisturbed, to compare")
        losses = compare(records, undisturbed(root, WORLD_SIZE, steps), saved_every=CKPT_EVERY)

    times = [kill.recovery_s for kill in kills]
    quantiles = {f"p{percent}": rounded(percentile(times, percent)) for percent in (50, 90, 99)}
    quantiles["max"] = rounded(max(times, default=None))
    print(f"\n{machine.in_words(here)}, load {load}\n")
    table(("kills", "recovered", *(f"{name} s" for name in quantiles)), [(wanted, len(kills), *quantiles.values())])
    print(
        f"\nsteps {steps}; losses compared {losses.compared}, different {losses.different}; "
        f"steps never trained {losses.missing}; notes cut off by a kill {losses.notes_cut_off}\n"
    )
    grown = growth(weights)
    table(
        ("process", "MiB at first", "MiB at last", "KiB per kill", "files at first", "files at last"),
        [(name, *of.values()) for name, of in grown.items()],
    )
    print()
    table(("of the record", ""), list(told.items()))
    print()
    final_line(
        {
            "bench": "soak",
            "machine": here,
            "load": load,
            "kills": wanted,
            "recovered": len(kills),
            "failure": failure,
            "recovery_s": quantiles,
            "steps": steps,
            "losses": losses._asdict(),
            "record": told,
            "growth": grown,
        }
    )


if __name__ == "__main__":
    main()
