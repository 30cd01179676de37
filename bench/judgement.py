"""Cluster-days of the simulated cluster: complaints about today's policy, its regret to the oracle, and their seeds.

    python bench/judgement.py --days 10000                    an hour of a core; --quick: a minute
    python bench/judgement.py --days 10000 --keep FILE        go on where the last run with this file ended

Ctrl-C ends it with what is done.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec

from bench.report import final_line, table, tell
from holdfast.policy_scores import Estimate, PolicyScore
from holdfast_proving.judging.scoring import estimate, score_policies
from holdfast_proving.policies.named import policy_of
from holdfast_proving.scenario.load import load_scenario

SHARES = {"mixed": 0.49, "lemons": 0.49, "fleet": 0.02}
"""Share of the days by scenario: a day of the fleet's 400 machines costs as much as 15 of the others."""
QUICK_DAYS = 60.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int
    policy: str
    score: PolicyScore


def one(scenario: str, policy: str, seed: int) -> Result:
    score = score_policies(scenario, load_scenario(scenario), [policy_of(policy)], [seed]).scores[0]
    return Result(scenario=scenario, seed=seed, policy=policy, score=msgspec.structs.replace(score, curve=()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=10_000.0, help="cluster-days, over all scenarios")
    parser.add_argument("--policy", default="today", help="a name, or a file with settings")
    parser.add_argument("--scenario", action="append", help=f"repeatable; default: {', '.join(SHARES)}")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=Path, help="file for the results; those in it are not simulated again")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    shares = {name: SHARES.get(name, 1.0) for name in asked.scenario or SHARES}
    wanted = list(seeds_of(shares, QUICK_DAYS if asked.quick else asked.days, asked.first_seed))
    found = {key: result for key, result in kept(asked.keep, asked.policy).items() if key in set(wanted)}
    if found:
        tell(f"{len(found)} of {len(wanted)} simulations are in {asked.keep}")
    try:
        for result in simulated([key for key in wanted if key not in found], asked.policy, asked.workers):
            found[result.scenario, result.seed] = result
            if asked.keep:
                with asked.keep.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
            tell(f"{len(found)} of {len(wanted)}: {result.scenario}, seed {result.seed}")
    except KeyboardInterrupt:
        tell("interrupted: the table has what is done")
    report({name: {seed: it.score for (of, seed), it in sorted(found.items()) if of == name} for name in shares})


def seeds_of(shares: Mapping[str, float], days: float, first_seed: int) -> Iterator[tuple[str, int]]:
    """Yield scenario and seed of each simulation; the scenarios take turns, so that a part is like the whole."""
    counts = {
        name: max(1, round(days * share / sum(shares.values()) / load_scenario(name).days))
        for name, share in shares.items()
    }
    turns = [
        ((number + 1) / count, name, first_seed + number) for name, count in counts.items() for number in range(count)
    ]
    return ((name, seed) for _, name, seed in sorted(turns))


def kept(file: Path | None, policy: str) -> dict[tuple[str, int], Result]:
    """Return the results in the file. A last line that was cut off is simulated again."""
    if file is None or not file.exists():
        return {}
    whole = file.read_bytes().splitlines(keepends=True)
    if whole and not whole[-1].endswith(b"\n"):
        file.write_bytes(b"".join(whole[:-1]))
        whole.pop()
    results = (msgspec.json.decode(line, type=Result) for line in whole)
    return {(it.scenario, it.seed): it for it in results if it.policy == policy}


def simulated(runs: Sequence[tuple[str, int]], policy: str, workers: int) -> Iterator[Result]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from (
                done.result() for done in as_completed(pool.submit(one, name, policy, seed) for name, seed in runs)
            )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def report(found: Mapping[str, Mapping[int, PolicyScore]]) -> None:
    head = (
        "scenario",
        "days",
        "seeds",
        "ETTR",
        "lost s/day",
        "regret s/day",
        "incidents",
        "evicted",
        "wrongly",
        "cleared",
        "missed",
    )
    table(head, [(name, *row(name, list(of.values()), list(of))) for name, of in found.items() if of])
    final_line({name: summary(name, of) for name, of in found.items() if of})


def row(scenario: str, scores: Sequence[PolicyScore], seeds: Sequence[int]) -> tuple[object, ...]:
    return (
        f"{load_scenario(scenario).days * len(scores):g}",
        f"{min(seeds)}-{max(seeds)}",
        with_interval([score.ettr.mean for score in scores], 4),
        with_interval([score.lost_s.mean for score in scores], 1),
        with_interval([score.regret_s.mean for score in scores], 1),
        *(sum(getattr(score, name) for score in scores) for name in ("incidents", "evictions")),
        *(
            sum(getattr(score, name) for score in scores)
            for name in ("wrong_evictions", "cleared_evictions", "missed_culprits")
        ),
    )


def with_interval(values: Sequence[float], digits: int) -> str:
    it: Estimate = estimate(values)
    half = "" if it.low is None or it.high is None else f" ±{(it.high - it.low) / 2:.{digits}f}"
    return f"{it.mean:.{digits}f}{half}"


def by_incidents(scores: Sequence[PolicyScore]) -> dict[int, int]:
    total = sum((Counter(score.culprits_by_incidents) for score in scores), Counter[int]())
    return dict(sorted(total.items()))


def summary(scenario: str, of_seeds: Mapping[int, PolicyScore]) -> dict[str, object]:
    """Join the scores of all seeds of a scenario, and name the first seeds with complaints that are not known."""
    scores = list(of_seeds.values())
    kinds: Counter[str] = Counter()
    unknown: dict[str, list[int]] = {}
    for seed, score in of_seeds.items():
        for complaint in score.complaints:
            kinds[complaint.wrong] += complaint.count
            if not complaint.is_known:
                unknown.setdefault(complaint.wrong, []).append(seed)
    return {
        "cluster_days": load_scenario(scenario).days * len(scores),
        "seeds": [min(of_seeds), max(of_seeds)],
        "ettr": msgspec.to_builtins(estimate([score.ettr.mean for score in scores])),
        "lost_s_per_day": msgspec.to_builtins(estimate([score.lost_s.mean for score in scores])),
        "regret_s_per_day": msgspec.to_builtins(estimate([score.regret_s.mean for score in scores])),
        "incidents": sum(score.incidents for score in scores),
        "evictions": sum(score.evictions for score in scores),
        "wrong_evictions": sum(score.wrong_evictions for score in scores),
        "cleared_evictions": sum(score.cleared_evictions for score in scores),
        "missed_culprits": sum(score.missed_culprits for score in scores),
        "culprits_by_incidents": by_incidents(scores),
        "ended_jobs": sum(score.ended_jobs for score in scores),
        "complaints": dict(kinds.most_common()),
        "unknown": {wrong: seeds[:10] for wrong, seeds in unknown.items()},
        "replay": f"holdfast simulate --scenario {scenario} --seeds 1 --seed SEED",
    }


if __name__ == "__main__":
    main()
