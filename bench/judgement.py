"""Cluster-days of the simulated cluster: complaints about today's policy, its regret to the oracle, and their seeds.

python bench/judgement.py --days 10000      some hours of a core; --quick: a minute
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import msgspec

from holdfast.policy_scores import PolicyScore
from holdfast_proving.judging.scoring import estimate, score_policies
from holdfast_proving.policies.named import policy_of
from holdfast_proving.scenario.load import load_scenario

SCENARIOS = ("mixed", "fleet", "lemons")
QUICK_DAYS = 60.0


def one(scenario: str, policy: str, seed: int) -> PolicyScore:
    loaded = load_scenario(scenario)
    return score_policies(scenario, loaded, [policy_of(policy)], [seed]).scores[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=10_000.0, help="cluster-days, over all scenarios")
    parser.add_argument("--policy", default="today", help="a name, or a file with settings")
    parser.add_argument("--scenario", action="append", help=f"repeatable; default: {', '.join(SCENARIOS)}")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    scenarios = tuple(asked.scenario or SCENARIOS)
    days = (QUICK_DAYS if asked.quick else asked.days) / len(scenarios)
    runs = [
        (name, asked.first_seed + number)
        for name in scenarios
        for number in range(max(1, round(days / load_scenario(name).days)))
    ]
    found: dict[str, dict[int, PolicyScore]] = {name: {} for name in scenarios}
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(one, name, asked.policy, seed): (name, seed) for name, seed in runs}
        for number, done in enumerate(as_completed(pending), start=1):
            name, seed = pending[done]
            found[name][seed] = done.result()
            print(f"{number} of {len(runs)}: {name}, seed {seed}", file=sys.stderr)
    print(json.dumps({name: summary(name, dict(sorted(of.items()))) for name, of in found.items()}))


def summary(scenario: str, of_seeds: dict[int, PolicyScore]) -> dict[str, object]:
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
        "complaints": dict(kinds.most_common()),
        "unknown": {wrong: seeds[:10] for wrong, seeds in unknown.items()},
        "replay": f"holdfast simulate --scenario {scenario} --seeds 1 --seed SEED",
    }


if __name__ == "__main__":
    main()
