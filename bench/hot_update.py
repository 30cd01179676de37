"""New code in a running job: from the command to the first step of every rank after it.

    python bench/hot_update.py            7 times each, with 2 and with 4 ranks; some 15 minutes on two cores
    python bench/hot_update.py --quick    2 times each

Three ways take turns, with the same script (bench/workload.py), the same checkpoints (its own, every 10 steps) and the
same two nodes: `holdfast update --urgent`; `holdfast stop` and `holdfast run` of the changed script; and torchrun ended
by SIGTERM and started again. Times are from the start of the command to the ranks' own stamps; so the start of a Python
for each command is in them. How long training stood still is told beside it: from the last step that any rank of the
old code completed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import machine
from launchers import FOREVER, WORKLOAD, Cluster, LauncherFailed, Place, cluster, seconds, torchrun
from records import Generation, Records, Timeout
from report import final_line, median, rounded, table, tell

START_S = 120.0
TRAINING_S = 3.0
"""Seconds that a job has trained when its code changes."""
NODES = 2
AIM = 11.0
"""ByteRobust's hot update against requeueing a job (§8.1)."""

HOT, RESUBMIT, TORCHRUN = "holdfast update", "holdfast stop + run", "torchrun again"


class Trial(NamedTuple):
    """One change of code. `phases` add up to `took_s`; training stood still for `still_s` of it."""

    took_s: float
    still_s: float
    phases: dict[str, float]
    lost_steps: int
    load: float


class Run:
    """The workload in a place of its own, with a source tree that can be changed."""

    def __init__(self, root: Path, world_size: int) -> None:
        self.root = root
        self.world_size = world_size
        self.place = Place.fresh(root, "run")
        self.records = Records(self.place.record, world_size)
        self.source = root / "source"
        self.source.mkdir()
        shutil.copy(WORKLOAD, self.source)

    def submit(self, running: Cluster, job: str) -> None:
        """`holdfast run -d` of the source tree as it is."""
        shape = ("--nnodes", str(NODES), "--nproc-per-node", str(self.world_size // NODES))
        script = str(self.source / WORKLOAD.name)
        running.holdfast("run", "-d", "--name", job, *shape, script, *self.place.arguments(FOREVER))

    def edit(self) -> None:
        """Another version of the code."""
        with (self.source / WORKLOAD.name).open("a") as file:
            file.write(f"# {time.time()}\n")

    def trained(self) -> Generation:
        """The generation that trains, some seconds later."""
        before = self.records.await_generation(START_S)
        time.sleep(TRAINING_S)
        return before

    def after(self, before: Generation) -> Generation:
        """The generation that follows, once every rank has completed a step."""
        return self.records.await_generation(START_S, but=before.pids)

    def trial(self, began: float, ends: dict[str, float], after: Generation, load: float) -> Trial:
        """Return the result of one update. `ends` are the ends of its phases."""
        last = max(lives[-2].steps[-1].at for lives in self.records.lives)
        took_s, still_s = after.first_step - began, after.first_step - last
        return Trial(took_s, still_s, _phases(began, ends), self.lost_steps(), load)

    def lost_steps(self) -> int:
        """Steps that rank 0 trained twice."""
        lives = self.records.lives[0]
        return max(0, lives[-2].steps[-1].number - lives[-1].restored_step)


def hot_update(run: Run, running: Cluster) -> Trial:
    job = run.root.name
    run.submit(running, job)
    try:
        before = run.trained()
        run.edit()
        load, began = machine.load(), time.time()
        running.holdfast("update", job, "--from", str(run.source), "--urgent")
        after = run.after(before)
        running.await_event(job, "hot_update", START_S)
        running.await_event(job, "ranks_stopped", START_S, count=NODES)
        decided = seconds(running.events(job, "hot_update")[-1]["at"])
        stopped = max(seconds(event["at"]) for event in running.events(job, "ranks_stopped"))
    finally:
        running.stop(job)
    ends = {"command": decided, "fetch and stop": stopped, "start": after.began, "to the step": after.first_step}
    return run.trial(began, ends, after, load)


def resubmit(run: Run, running: Cluster) -> Trial:
    first, second = f"{run.root.name}-a", f"{run.root.name}-b"
    run.submit(running, first)
    try:
        before = run.trained()
        run.edit()
        load, began = machine.load(), time.time()
        running.holdfast("stop", first)
        stopped = time.time()
        # Not waited for: the second has its nodes as soon as the first one's ranks are gone.
        run.submit(running, second)
        after = run.after(before)
    finally:
        for job in (first, second):
            with contextlib.suppress(LauncherFailed):
                running.stop(job)
    ends = {"stop command": stopped, "run command and start": after.began, "to the step": after.first_step}
    return run.trial(began, ends, after, load)


def torchrun_again(run: Run, _: Cluster) -> Trial:
    with torchrun(run.world_size, run.place):
        before = run.trained()
        load, began = machine.load(), time.time()
    stopped = time.time()
    with torchrun(run.world_size, run.place):
        after = run.after(before)
    ends = {"stop": stopped, "start": after.began, "to the step": after.first_step}
    return run.trial(began, ends, after, load)


WAYS: dict[str, Callable[[Run, Cluster], Trial]] = {HOT: hot_update, RESUBMIT: resubmit, TORCHRUN: torchrun_again}


def _phases(began: float, ends: dict[str, float]) -> dict[str, float]:
    starts = (began, *ends.values())
    return {name: end - start for (name, end), start in zip(ends.items(), starts, strict=False)}


def measure(world_sizes: list[int], runs: int) -> dict[int, dict[str, list[Trial]]]:
    """All trials, by the number of ranks and by the way."""
    trials: dict[int, dict[str, list[Trial]]] = {}
    with cluster(NODES) as (running, root):
        for number in range(runs):
            for world_size in world_sizes:
                # Each goes first in turn.
                names = [*WAYS][number % len(WAYS) :] + [*WAYS][: number % len(WAYS)]
                for name in names:
                    directory = root / f"{name.replace(' + ', '-').replace(' ', '-')}-{world_size}-{number}"
                    told = f"[{number + 1}/{runs}] {world_size} ranks, {name}"
                    try:
                        trial = WAYS[name](Run(directory, world_size), running)
                    except (Timeout, LauncherFailed) as error:
                        tell(f"{told}: failed: {error}")
                        continue
                    trials.setdefault(world_size, {}).setdefault(name, []).append(trial)
                    tell(f"{told}: {trial.took_s:.3f} s, standing still {trial.still_s:.3f} s (load {trial.load})")
    return trials


def figures(trials: list[Trial]) -> dict[str, object]:
    """One way's figures."""
    times = [trial.took_s for trial in trials]
    return {
        "runs": len(trials),
        "median_s": rounded(median(times)),
        "min_s": rounded(min(times)),
        "max_s": rounded(max(times)),
        "still_median_s": rounded(median([trial.still_s for trial in trials])),
        "phases_median_s": {
            name: rounded(median([trial.phases[name] for trial in trials])) for name in trials[0].phases
        },
        "lost_steps_median": median([trial.lost_steps for trial in trials]),
        "load_median": median([trial.load for trial in trials]),
    }


def _ratio(of: dict[str, object], hot: dict[str, object], figure: str) -> float | None:
    return rounded(float(str(of[figure])) / float(str(hot[figure])), 1) if hot.get(figure) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 times each instead of 7")
    parser.add_argument("--runs", type=int, help="times each")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, even ones, with commas")
    args = parser.parse_args()
    runs = args.runs or (2 if args.quick else 7)
    here = machine.describe()
    tell(machine.in_words(here))

    trials = measure([int(number) for number in args.ranks.split(",")], runs)
    results = {size: {name: figures(of) for name, of in by_name.items()} for size, by_name in trials.items()}
    ratios: dict[int, dict[str, dict[str, float | None]]] = {}
    rows: list[tuple[object, ...]] = []
    for size, by_name in results.items():
        hot = by_name.get(HOT, {})
        for name, of in by_name.items():
            whole, still = _ratio(of, hot, "median_s"), _ratio(of, hot, "still_median_s")
            ratios.setdefault(size, {})[name] = {"command to step": whole, "standstill": still}
            times = (of["median_s"], of["min_s"], of["max_s"], whole, of["still_median_s"], still)
            rows.append((size, name, of["runs"], *times, of["load_median"]))
    print(f"\n{machine.in_words(here)}\n")
    head = ("ranks", "way", "runs", "median s", "min s", "max s", "/ update", "standstill s", "/ update", "load")
    table(head, rows)
    for name in WAYS:
        of_sizes = [(size, by_name[name]["phases_median_s"]) for size, by_name in results.items() if name in by_name]
        phases = [(size, of) for size, of in of_sizes if isinstance(of, dict)]
        if phases:
            print(f"\n{name}: where the time goes, medians in seconds")
            table(("ranks", *phases[0][1]), [(size, *of.values()) for size, of in phases])
    print()
    final_line(
        {
            "bench": "hot_update",
            "aim": AIM,
            "machine": here,
            "load": machine.load(),
            "ratios": ratios,
            "results": results,
        }
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
