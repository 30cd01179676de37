"""Recorded operations: how long it takes to read and to judge them, and how often the verdict is right.

    python bench/what_if.py            traces of 16 to 512 workers; 400 simulated jobs
    python bench/what_if.py --quick    up to 64 workers; 60 jobs
    python bench/what_if.py --trace trace-AR.csv.gz    a trace of your own besides

The jobs are simulated as in `tests/scenes/operation_traces.py`: sizes, schedules, noise and magnitudes are drawn at
random (seeded), with one cause of slowness or none. A verdict is right if its kind is, and if the machines that it
names are those that were slowed down. What costs less than a twentieth of a step may as well be called none.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from report import final_line, rounded, table, tell

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.engines.stragglers.judging import judge_operations
from holdfast.engines.stragglers.straggler_verdict import SlownessVerdict
from holdfast.engines.stragglers.traces.operations import read_operations
from tests.scenes.operation_traces import Job

SIZES: list[dict[str, Any]] = [
    {"dp": 4, "pp": 4, "microbatches": 32, "steps": 40},
    {"dp": 16, "pp": 4, "microbatches": 16, "steps": 20},
    {"dp": 32, "pp": 8, "microbatches": 16, "steps": 10},
    {"dp": 64, "pp": 8, "microbatches": 32, "steps": 5},
]
CAUSES = ("none", "machine", "for_a_while", "stage_imbalance", "sequence_length_imbalance", "link", "pauses")
SMALL = 0.05


def timed(name: str, data: bytes) -> dict[str, object]:
    began = time.process_time()
    operations = read_operations(data, name)
    read = time.process_time()
    verdict = judge_operations(operations)
    return {
        "trace": name,
        "workers": operations.dp_size * operations.pp_size,
        "operations": len(operations.kind),
        "read_cpu_s": rounded(read - began, 2),
        "judge_cpu_s": rounded(time.process_time() - read, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "verdict": verdict.verdict,
    }


def drawn(seed: int) -> tuple[str, dict[str, Any]]:
    """A cause and a job that has it."""
    chance = np.random.default_rng(seed)
    pp, dp = int(chance.choice([1, 2, 4, 8])), int(chance.choice([2, 3, 4, 8]))
    dp = max(dp, 4) if pp == 1 else dp if dp * pp <= 24 else 2
    vpp = int(chance.choice([1, 1, 2])) if pp > 1 else 1
    job: dict[str, Any] = {
        "dp": dp,
        "pp": pp,
        "vpp": vpp,
        "microbatches": pp * int(chance.integers(1, 4)) if vpp > 1 else int(chance.integers(max(3, pp), 4 * pp + 5)),
        "steps": int(chance.integers(8, 20)),
        "noise": float(chance.uniform(0.005, 0.03)),
        "lengths": float(chance.choice([0.0, 0.01, 0.02])),
        "overlap": bool(chance.random() < 0.3),
        "last_stage": (1 + float(chance.uniform(0, 0.08)), 1 + float(chance.uniform(0, 0.03))),
        "seed": seed,
    }
    cause = str(chance.choice(CAUSES if pp > 1 else [one for one in CAUSES if one not in ("stage_imbalance", "link")]))
    at, times = (int(chance.integers(dp)), int(chance.integers(pp))), float(chance.uniform(1.2, 2.5))
    if cause in ("machine", "for_a_while"):
        job["slow"] = {at: (times, times * float(chance.uniform(0.9, 1.1)))}
    if cause == "for_a_while":
        lasts = max(3, job["steps"] // 3)
        first = int(chance.integers(0, job["steps"] - lasts))
        job["slow_steps"] = range(first, first + lasts)
    elif cause == "stage_imbalance":
        job["last_stage"] = (times, times)
    elif cause == "sequence_length_imbalance":
        job["lengths"] = float(chance.uniform(0.15, 0.6))
    elif cause == "link":
        job["links"] = {(at[0], min(at[1], pp - 2)): float(chance.uniform(80, 200))}
    elif cause == "pauses":
        job["pauses"] = float(chance.uniform(0.03, 0.08))
    return "machine" if cause == "for_a_while" else cause, job


def answer(wanted: str, job: dict[str, Any], verdict: SlownessVerdict) -> str:
    """`right`, `small` (called none; costs little), `wrong`, or `innocent`: a machine is named that is not slow."""
    named = {(one.dp_rank, one.stage) for cause in verdict.causes if cause.kind == "machine" for one in cause.workers}
    if named - set(job.get("slow", {})):
        return "innocent"
    if verdict.verdict == wanted and named == set(job.get("slow", {})):
        return "right"
    costs = max((one.saved_s for one in verdict.causes if one.kind == wanted), default=0.0)
    return "small" if verdict.verdict == "none" and costs < SMALL * verdict.what_if.replayed_s else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 64 workers, 60 jobs")
    parser.add_argument("--jobs", type=int, help="how many simulated jobs")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a recorded trace to time as well")
    given = parser.parse_args()
    speeds = [timed(path.name, path.read_bytes()) for path in given.trace]
    for size in SIZES[: 2 if given.quick else None]:
        name = ", ".join(f"{key} {value}" for key, value in size.items())
        tell(f"simulating {name}")
        speeds.append(timed(name, gzip.compress(Job(slow={(1, 1): (1.5, 1.5)}, **size).trace(), 1)))
    answers: dict[str, Counter[str]] = {}
    count = given.jobs or (60 if given.quick else 400)
    for seed in range(count):
        wanted, job = drawn(seed)
        verdict = judge_operations(read_operations(Job(**job).trace(), f"job {seed}"))
        said = answer(wanted, job, verdict)
        answers.setdefault(wanted, Counter())[said] += 1
        if said not in ("right", "small"):
            tell(f"job {seed}: {said}: {wanted} called {verdict.verdict}")
        elif seed % 50 == 49:
            tell(f"{seed + 1} of {count} jobs judged")
    kinds = ("right", "small", "wrong", "innocent")
    table(list(speeds[0]), [list(speed.values()) for speed in speeds])
    print()
    table(
        ["cause", "jobs", *kinds],
        [[one, found.total(), *(found[kind] for kind in kinds)] for one, found in sorted(answers.items())],
    )
    final_line({"speed": speeds, "answers": answers})


if __name__ == "__main__":
    main()
