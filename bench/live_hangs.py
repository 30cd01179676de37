"""Jobs that stand still, each in a way of its own: seconds until it is noticed, somebody is named, and it trains again.

    python bench/live_hangs.py            3 times each; some ten minutes
    python bench/live_hangs.py --quick    once each

Each is a row of `tests/e2e/hang_cases.py`: a job of four ranks on two nodes, with steps of half a second; a third node
stands by.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
from report import final_line, median, rounded, table, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from hang_cases import CASES, GUILTY, Case, Outcome, end, outcome, start, strike

from holdfast.faults.rights import Need, lacking

NODES = 3
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


def rounds(cluster: Cluster, case: Case, times: int) -> tuple[list[Outcome], str]:
    """What came of each, and why it ended early."""
    came: list[Outcome] = []
    for number in range(times):
        try:
            cluster.make_whole()
            job = start(cluster, case, nnodes=2, nproc=2, step_s=STEP_S)
            came.append(one := outcome(cluster, case, job, strike(cluster, case, job), LIMIT_S))
            end(cluster, case, job)
        except AssertionError as error:
            return came, str(error).splitlines()[0]
        finally:
            cluster.command("inject", "--undo", check=False)
        tell(
            f"{case.name} [{number + 1}/{times}]: noticed after {one.noticed_s:.2f} s, {one.summary} after "
            f"{one.named_s:.2f} s, {one.decision} after {one.decided_s:.2f} s, trains after {one.trains_s:.2f} s "
            f"(load {machine.load()})"
        )
    return came, ""


def figures_of(case: Case, came: list[Outcome], failure: str) -> dict[str, Any]:
    """One row."""
    return {
        "what": case.name,
        "rounds": len(came),
        "noticed_s": rounded(median([one.noticed_s for one in came])),
        "named_s": rounded(median([one.named_s for one in came])),
        "decided_s": rounded(median([one.decided_s for one in came])),
        "trains_s": rounded(median([one.trains_s for one in came])),
        "trains_s_max": rounded(max((one.trains_s for one in came), default=None)),
        "named": sum(GUILTY in one.ranks for one in came),
        "alone": sum(one.ranks == (GUILTY,) for one in came),
        "decision": ", ".join(sorted({one.decision for one in came})),
        "not_carried_out": failure,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    times = args.rounds or (1 if args.quick else 3)
    here = machine.describe()
    tell(machine.in_words(here))

    rows = []
    directory = Path(tempfile.mkdtemp(prefix="holdfast-hangs-"))
    running = Cluster(directory / "cluster")
    try:
        running.up(NODES, namespaces=not lacking(Need.LINKS) and not lacking(Need.MOUNT))
        for case in CASES:
            came, failure = [], ""
            if case.needs_links and running.info.fabric is None:
                failure = "the nodes of this cluster have no networks of their own"
            else:
                came, failure = rounds(running, case, times)
            if failure:
                tell(f"{case.name}: {failure}")
            rows.append(figures_of(case, came, failure))
        load = machine.load()
    except BaseException:
        tell(f"logs are kept in {directory}")
        raise
    finally:
        for job in running.jobs:
            job.leave()
        running.close()
        running.command("down", check=False)
    shutil.rmtree(directory)

    print(f"\n{machine.in_words(here)}, load {load}, steps of {STEP_S:g} s\n")
    table([*SHOWN.values()], [[row[name] for name in SHOWN] for row in rows])
    if left := [(row["what"], row["not_carried_out"]) for row in rows if row["not_carried_out"]]:
        print()
        table(("what stands still", "not carried out, or ended early"), left)
    print()
    final_line({"bench": "live_hangs", "machine": here, "load": load, "step_s": STEP_S, "hangs": rows})


if __name__ == "__main__":
    main()
