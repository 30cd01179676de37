"""How surely each wrong policy is caught: the share of fresh seeds, and the complaints that no other policy has.

python bench/mutants.py --seeds 20 > table.md      some minutes of two cores; --policy NAME: one, repeatable
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from holdfast_proving.judging.trial import first_complaints, trials_of
from holdfast_proving.policies.named import NAMED
from holdfast_proving.policies.wrong import WRONG

FIRST_SEED = 5000
SURE = 0.9
"""Share of seeds below which a wrong policy is caught by luck."""


def caught_in(seeds: range, name: str) -> tuple[int, Counter[str]]:
    """Return the number of seeds in which a policy is caught, and the complaints of the first trial that does so."""
    kinds: Counter[str] = Counter()
    caught = 0
    for seed in seeds:
        policy = NAMED[name]
        of_trials = ({it.wrong.value for it in first_complaints(policy, trial, seed)} for trial in trials_of(policy))
        found = next((some for some in of_trials if some), set[str]())
        kinds.update(found)
        caught += bool(found)
    return caught, kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--policy", action="append", help="repeatable; default: all wrong ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    names = asked.policy or [policy.name for policy in WRONG]
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(caught_in, seeds), names)
        for line in table(names, found, len(seeds)):
            print(line, flush=True)


def table(names: Iterable[str], found: Iterable[tuple[int, Counter[str]]], seeds: int) -> Iterable[str]:
    yield f"| wrong policy | caught in {seeds} seeds | by |"
    yield "|---|---|---|"
    by_luck = []
    for name, (caught, kinds) in zip(names, found, strict=True):
        by = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3))
        yield f"| `{name}` | {caught} | {by or NAMED[name].about} |"
        if caught < SURE * seeds:
            by_luck.append(name)
    if by_luck:
        print(f"caught by luck, if at all: {', '.join(by_luck)}", file=sys.stderr)


if __name__ == "__main__":
    main()
