"""Jobs that stand still, each in a way of its own: seconds until it is noticed, somebody is named, and it trains again.

    python bench/live_hangs.py            3 times each; some ten minutes
    python bench/live_hangs.py --quick    once each

Each is a row of `tests/e2e/hang_cases.py`: a job of four ranks on two nodes, with steps of half a second; a third node
stands by.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import machine
from recoveries import drilled_cluster, parser, rounds, seconds_of, show, times_asked
from report import final_line, median, rounded, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from hang_cases import CASES, GUILTY, Case, Outcome, end, outcome, start, strike

STEP_S = 0.5
LIMIT_S = 240.0
SHOWN = {
    "what": "what stands still",
    "rounds": "rounds",
    "noticed_s": "noticed s",
    "named_s": "named s",
    "decided_s": "decided s",
    "trains_s": "trains s",
    "trains_s_max": "at most",
    "named": "guilty named",
    "alone": "alone",
    "decision": "decision",
}


def carry_out(cluster: Cluster, case: Case) -> Outcome:
    """One job that stands still, to its end."""
    job = start(cluster, case, nnodes=2, nproc=2, step_s=STEP_S)
    one = outcome(cluster, case, job, strike(cluster, case, job), LIMIT_S)
    end(cluster, case, job)
    return one


def told(one: Outcome) -> str:
    """Return the result in words."""
    return (
        f"noticed after {one.noticed_s:.2f} s, {one.summary} after {one.named_s:.2f} s, "
        f"{one.decision} after {one.decided_s:.2f} s, trains after {one.trains_s:.2f} s"
    )


def figures_of(case: Case, came: list[Outcome], failure: str) -> dict[str, Any]:
    """One row."""
    return {
        "what": case.name,
        **seconds_of(came),
        "named_s": rounded(median([one.named_s for one in came])),
        "named": sum(GUILTY in one.ranks for one in came),
        "alone": sum(one.ranks == (GUILTY,) for one in came),
        "not_carried_out": failure,
    }


def main() -> None:
    times = times_asked(parser(__doc__).parse_args())
    here = machine.describe()
    tell(machine.in_words(here))

    rows = []
    with drilled_cluster("hangs") as running:
        for case in CASES:
            came, failure = [], ""
            if case.needs_links and running.info.fabric is None:
                failure = "the nodes of this cluster have no networks of their own"
            else:
                came, failure = rounds(running, case.name, times, lambda case=case: carry_out(running, case), told)
            if failure:
                tell(f"{case.name}: {failure}")
            rows.append(figures_of(case, came, failure))
        load = machine.load()

    print(f"\n{machine.in_words(here)}, load {load}, steps of {STEP_S:g} s\n")
    show(rows, SHOWN, ["what"])
    final_line({"bench": "live_hangs", "machine": here, "load": load, "step_s": STEP_S, "hangs": rows})


if __name__ == "__main__":
    main()
