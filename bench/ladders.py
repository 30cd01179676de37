"""Our default settings beside the papers' ladders, on all scenarios: the table of docs/simulate.md.

    python bench/ladders.py                        a quarter of an hour of two cores; prints Markdown
    python bench/ladders.py --policy FILE.toml     with another policy beside them
    python bench/ladders.py --quick                two seeds of two days

Ctrl-C ends it with the seeds that are done.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import msgspec

from holdfast.policy_scores import Estimate, PolicyScore
from holdfast_proving.judging.scoring import estimate, score_policies
from holdfast_proving.policies.named import policy_of
from holdfast_proving.scenario.load import load_scenario

SCENARIOS = (
    "llama3",
    "ft-hsdp",
    "byterobust-dense",
    "byterobust-moe",
    "byterobust-fleet",
    "transom",
    "mixed",
    "lemons",
)
POLICIES = ("today", "byterobust", "transom", "requeue_checked", "requeue", "torchrun", "oracle")
EVENTS_MAX = 400_000
"""A policy that restarts without end is cut short here."""


def scores(scenario: str, policies: Sequence[str], seed: int, days: float) -> tuple[PolicyScore, ...]:
    loaded = msgspec.structs.replace(load_scenario(scenario), days=days)
    found = score_policies(scenario, loaded, [policy_of(name) for name in policies], [seed], events_max=EVENTS_MAX)
    return tuple(msgspec.structs.replace(score, curve=(), complaints=()) for score in found.scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", action="append", help=f"repeatable; default: {', '.join(SCENARIOS)}")
    parser.add_argument("--policy", action="append", default=[], help="another policy: a name, or a file with settings")
    parser.add_argument("--only", action="store_true", help="these policies and today's, without the papers' ladders")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    days, seeds = (2.0, 2) if asked.quick else (asked.days, asked.seeds)
    policies = list(dict.fromkeys(("today", *asked.policy, *(() if asked.only else POLICIES))))
    scenarios = tuple(asked.scenario or SCENARIOS)
    runs = [(name, seed) for seed in range(asked.first_seed, asked.first_seed + seeds) for name in scenarios]
    found: dict[str, dict[int, tuple[PolicyScore, ...]]] = {name: {} for name in scenarios}
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(scores, name, policies, seed, days): (name, seed) for name, seed in runs}
        try:
            for number, done in enumerate(as_completed(pending), start=1):
                name, seed = pending[done]
                found[name][seed] = done.result()
                print(f"{number} of {len(runs)}: {name}, seed {seed}", file=sys.stderr)
        except KeyboardInterrupt:
            print("interrupted: the table has what is done", file=sys.stderr)
            pool.shutdown(wait=False, cancel_futures=True)
    print(f"{days:g} days, seeds {asked.first_seed} to {max((max(of) for of in found.values() if of), default=0)}.\n")
    print(
        "| scenario | policy | ETTR | lost s/day | than today | evicted, wrong, cleared | missed | given up | pool h |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in filter(found.get, scenarios):
        for number in range(len(policies)):
            print(row(name, [found[name][seed][number] for seed in sorted(found[name])], _first(found[name])))


def _first(of_seeds: dict[int, tuple[PolicyScore, ...]]) -> list[float]:
    return [of_seeds[seed][0].lost_s.mean for seed in sorted(of_seeds)]


def row(scenario: str, of: Sequence[PolicyScore], today_s: Sequence[float]) -> str:
    """Return a policy's row; `today_s` has the lost time of today's policy for the same seeds."""
    lost_s = [score.lost_s.mean for score in of]
    than = estimate([ours - today for ours, today in zip(lost_s, today_s, strict=True)])
    cut = " (cut short)" if any(score.cut_short for score in of) else ""
    cells = [
        scenario,
        of[0].policy + cut,
        _shown(estimate([score.ettr.mean for score in of]), 4),
        _shown(estimate(lost_s), 0),
        "" if of[0].policy == "today" else _shown(than, 0, signed=True),
        ", ".join(
            str(sum(getattr(score, name) for score in of))
            for name in ("evictions", "wrong_evictions", "cleared_evictions")
        ),
        str(sum(score.missed_culprits for score in of)),
        str(sum(score.ended_jobs for score in of)),
        f"{sum(score.pool_h for score in of):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _shown(value: Estimate, digits: int, *, signed: bool = False) -> str:
    mean = f"{value.mean:{'+' if signed else ''}.{digits}f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} ±{(value.high - value.low) / 2:.{digits}f}"


if __name__ == "__main__":
    main()
