"""kill -9 of one of N ranks, until every rank of the new generation has completed a step: Holdfast and torchrun.

    python bench/restart.py            7 kills for each, with 2 and with 4 ranks; some 15 minutes on two cores
    python bench/restart.py --quick    2 kills for each

Both launchers run bench/workload.py, take turns, and are measured by the ranks' own clocks. The baseline is
`torchrun --max-restarts` with `--rdzv-backend=c10d` and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Torchrun without that
variable is run too, for how often it recovers at all. A recovery has failed if no step is done within 60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import machine
from launchers import Cluster, LauncherFailed, Place, cluster, seconds, torchrun
from records import POLL_S, Generation, Records, Timeout
from report import final_line, median, rounded, table, tell

FAILED_S = 60.0
START_S = 120.0
TRAINING_S = 3.0
"""Seconds that a job has trained when the rank is killed."""

PHASES = ("notice", "decide", "order", "stop", "fork", "rendezvous", "restore", "step")
TORCHRUN_PHASES = ("relaunch", "import and rendezvous", "restore", "step")


class Trial(NamedTuple):
    """One kill. `recovery_s` is None if it was not recovered from; `phases` add up to it."""

    recovery_s: float | None
    phases: dict[str, float]
    load: float
    failure: str = ""


class Contender(NamedTuple):
    """A way to run the ranks; `trial` is given their number, the directory of the run, and which rank to kill."""

    name: str
    trial: Callable[[int, Path, int], Trial]


# --- torchrun --------------------------------------------------------------------------------------


def torchrun_trial(world_size: int, root: Path, victim: int, *, fair: bool) -> Trial:
    place = Place.fresh(root, "torchrun")
    records = Records(place.record, world_size)
    with torchrun(world_size, place, fair=fair) as process:
        before = records.await_generation(START_S)
        time.sleep(TRAINING_S)
        load = machine.load()
        killed_at = _kill(before, victim)
        after = _await_recovery(records, before, process)
    if isinstance(after, str):
        return Trial(None, {}, load, after)
    ends = (after.began, after.joined, after.restored, after.first_step)
    return Trial(after.first_step - killed_at, _phases(TORCHRUN_PHASES, killed_at, ends), load)


def _await_recovery(records: Records, before: Generation, process: subprocess.Popen[bytes]) -> Generation | str:
    """The generation after the kill, or why there is none."""
    until = time.monotonic() + FAILED_S
    while time.monotonic() < until:
        after = records.newest(before.pids)
        if after is not None:
            return after
        if process.poll() is not None:
            return f"torchrun ended with {process.returncode}"
        time.sleep(POLL_S)
    return f"no step within {FAILED_S:g} s"


# --- Holdfast --------------------------------------------------------------------------------------


def holdfast_trial(world_size: int, root: Path, victim: int, *, running: Cluster, nnodes: int) -> Trial:
    place = Place.fresh(root, "holdfast")
    records = Records(place.record, world_size)
    job = root.name
    running.submit(job, place, nnodes, world_size // nnodes)
    try:
        before = records.await_generation(START_S)
        time.sleep(TRAINING_S)
        load = machine.load()
        killed_at = _kill(before, victim)
        try:
            after = records.await_generation(FAILED_S, but=before.pids)
        except Timeout as timeout:
            return Trial(None, {}, load, str(timeout))
        running.await_event(job, "incident_closed", START_S)
        ends = _holdfast_ends(running, job, after)
    finally:
        running.stop(job)
    return Trial(after.first_step - killed_at, _phases(PHASES, killed_at, ends), load)


def _holdfast_ends(running: Cluster, job: str, after: Generation) -> tuple[float, ...]:
    """When each phase of the last recovery ended: by the events as far as the fork, then by the ranks."""
    decision = running.events(job, "generation_started")[-1]
    noticed = next(event for event in running.events(job, "process_exited") if event["id"] == decision["cause"])
    stops = [event for event in running.events(job, "ranks_stopped") if event["at"] >= decision["at"]]
    stopped = max(seconds(event["at"]) for event in stops)
    # The order is there when the first node begins to obey it.
    ordered = min(seconds(event["at"]) - event["took_s"] for event in stops)
    return (
        *(seconds(noticed["at"]), seconds(decision["at"]), ordered, stopped),
        *(after.began, after.joined, after.restored, after.first_step),
    )


# --- both ------------------------------------------------------------------------------------------


def _kill(generation: Generation, victim: int) -> float:
    killed_at = time.time()
    os.kill(generation.pids[victim], signal.SIGKILL)
    return killed_at


def _phases(names: tuple[str, ...], began: float, ends: tuple[float, ...]) -> dict[str, float]:
    return {name: end - start for name, start, end in zip(names, (began, *ends), ends, strict=False)}


def measure(world_sizes: list[int], runs: int, plain_runs: int) -> dict[int, dict[str, list[Trial]]]:
    """All trials, by the number of ranks and by contender."""
    trials: dict[int, dict[str, list[Trial]]] = {}
    with cluster(max(world_sizes)) as (running, root):
        for number in range(runs):
            for world_size in world_sizes:
                contenders = _contenders(running, world_size, with_plain=number < plain_runs)
                # Each goes first in turn.
                for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                    directory = root / f"{contender.name.replace(' ', '-').replace(',', '')}-{world_size}-{number}"
                    trial = _tried(contender, world_size, directory, number % world_size)
                    trials.setdefault(world_size, {}).setdefault(contender.name, []).append(trial)
                    came_back = f"{trial.recovery_s:.3f} s" if trial.recovery_s is not None else trial.failure
                    tell(
                        f"[{number + 1}/{runs}] {world_size} ranks, rank {number % world_size} killed, "
                        f"{contender.name}: {came_back} (load {trial.load})"
                    )
    return trials


def _tried(contender: Contender, world_size: int, directory: Path, victim: int) -> Trial:
    try:
        return contender.trial(world_size, directory, victim)
    except (Timeout, LauncherFailed) as error:
        # Counted as a failure of the contender, whatever its cause.
        return Trial(None, {}, machine.load(), f"before the kill or after the recovery: {_last_line(error)}")


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _contenders(running: Cluster, world_size: int, *, with_plain: bool) -> list[Contender]:
    def on_holdfast(nnodes: int) -> Callable[[int, Path, int], Trial]:
        return lambda size, root, victim: holdfast_trial(size, root, victim, running=running, nnodes=nnodes)

    found = [
        Contender("torchrun", lambda size, root, victim: torchrun_trial(size, root, victim, fair=True)),
        Contender("holdfast", on_holdfast(1)),
        Contender("holdfast, a node per rank", on_holdfast(world_size)),
    ]
    if with_plain:
        found.append(
            Contender("torchrun, plain", lambda size, root, victim: torchrun_trial(size, root, victim, fair=False))
        )
    return found


def _figures(trials: list[Trial]) -> dict[str, object]:
    recovered = [trial for trial in trials if trial.recovery_s is not None]
    times = [trial.recovery_s for trial in recovered if trial.recovery_s is not None]
    names = list(recovered[0].phases) if recovered else []
    return {
        "runs": len(trials),
        "recovered": len(recovered),
        "median_s": rounded(median(times)),
        "min_s": rounded(min(times, default=None)),
        "max_s": rounded(max(times, default=None)),
        "phases_median_s": {name: rounded(median([trial.phases[name] for trial in recovered])) for name in names},
        "load_median": median([trial.load for trial in trials]),
        "failures": [trial.failure for trial in trials if trial.recovery_s is None],
    }


def show(results: dict[int, dict[str, dict[str, object]]], ratios: dict[int, dict[str, float | None]]) -> None:
    head = ("ranks", "launcher", "recovered", "median s", "min s", "max s", "torchrun / this", "load")
    rows = []
    for world_size, by_name in results.items():
        for name, of in by_name.items():
            recovered, ratio = f"{of['recovered']} of {of['runs']}", ratios[world_size].get(name)
            times = (of["median_s"], of["min_s"], of["max_s"])
            rows.append((world_size, name, recovered, *times, ratio and f"{ratio:.1f}", of["load_median"]))
    table(head, rows)
    for title, names in (("Holdfast", PHASES), ("torchrun", TORCHRUN_PHASES)):
        print(f"\n{title}: where the time goes, medians in seconds")
        phase_rows: list[tuple[object, ...]] = []
        for world_size, by_name in results.items():
            for name, of in by_name.items():
                phases = of["phases_median_s"]
                assert isinstance(phases, dict)
                if tuple(phases) == names:
                    phase_rows.append((world_size, name, *phases.values()))
        if phase_rows:
            table(("ranks", "launcher", *names), phase_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 kills for each instead of 7")
    parser.add_argument("--runs", type=int, help="kills for each")
    parser.add_argument("--plain-runs", type=int, help="kills of plain torchrun, at most as many; 0 for none")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas")
    args = parser.parse_args()
    runs = args.runs or (2 if args.quick else 7)
    plain_runs = runs if args.plain_runs is None else args.plain_runs
    here = machine.describe()
    tell(machine.in_words(here))

    trials = measure([int(number) for number in args.ranks.split(",")], runs, plain_runs)
    results = {size: {name: _figures(of) for name, of in by_name.items()} for size, by_name in trials.items()}
    ratios: dict[int, dict[str, float | None]] = {}
    for size, by_name in results.items():
        baseline = by_name["torchrun"]["median_s"]
        ratios[size] = {}
        for name, of in by_name.items():
            if baseline and of["median_s"]:
                ratios[size][name] = rounded(float(str(baseline)) / float(str(of["median_s"])), 1)
    print(f"\n{machine.in_words(here)}\n")
    show(results, ratios)
    print()
    final_line({"bench": "restart", "machine": here, "load": machine.load(), "ratios": ratios, "results": results})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
