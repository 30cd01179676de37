"""One drill for each symptom of ByteRobust's Table 1 that is noticed today: broken, noticed, decided, training again.

    python bench/drills.py            3 times each; some ten minutes
    python bench/drills.py --quick    once each
    python bench/drills.py oom-kill lose-node

Each drill is a row of `tests/e2e/drills.py`: a job of two ranks, or four, trains on two nodes, with a third on standby;
then `holdfast inject` breaks something. Each node has a separate network if this machine allows it. Drills that need
agents which do not read the kernel's log have another cluster. What cannot be caused here, or is not noticed yet, is
listed with the reason. If a drill fails, the bench prints why and goes on with the next one.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import machine
from recoveries import NODES, drilled_cluster, parser, rounds, seconds_of, show, times_asked
from report import final_line, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from drill_steps import carry_out
from drills import DRILLS, ENVIRONMENT, Drill, Outcome, divide_gpus

from holdfast.embedded.servers.ports import reserve_ports

LIMIT_S = 120.0
SHOWN = {
    "symptom": "symptom",
    "fault": "fault",
    "rounds": "rounds",
    "recovered": "recovered",
    "noticed_s": "noticed s",
    "decided_s": "decided s",
    "trains_s": "trains s",
    "trains_s_max": "at most",
    "decision": "decision",
    "incident": "shown as",
    "row": "row",
    "root": "root",
    "evicted": "evicted",
    "right": "right",
    "heals_by": "heals by",
}


def once(cluster: Cluster, drill: Drill) -> Outcome:
    """Carry out one drill, with a free port for the faults that need one."""
    with reserve_ports({}, None) as ports:
        port = ports.nats
    return carry_out(cluster, drill, port, LIMIT_S)


def told(one: Outcome) -> str:
    """Return the result in words."""
    return (
        f"noticed after {one.noticed_s:.2f} s as {one.incident}, {one.decision} after {one.decided_s:.2f} s, "
        f"trains after {one.trains_s:.2f} s"
    )


def figures_of(drill: Drill, came: list[Outcome], failure: str) -> dict[str, Any]:
    """One row."""
    return {
        "symptom": drill.symptom,
        "fault": drill.name,
        **seconds_of(came),
        "recovered": sum(one.outcome == "recovered" for one in came),
        "incident": ", ".join(sorted({one.incident for one in came})),
        "row": ", ".join(sorted({one.row for one in came})),
        "root": ", ".join(sorted({one.root for one in came})),
        "evicted": ", ".join(sorted({node for one in came for node in one.evicted})),
        "right": sum(drill.is_right(one) for one in came),
        "heals_by": drill.heals_by,
        "not_carried_out": failure,
    }


def cluster_for_drills(*, without_log: bool) -> AbstractContextManager[Cluster]:
    if without_log:
        return drilled_cluster("drills", apart=False)
    return drilled_cluster("drills", ENVIRONMENT, lambda made: divide_gpus(made.layout, NODES))


def carried_out(running: Cluster, drill: Drill, times: int) -> dict[str, Any]:
    """Carry it out so often, and return its row."""
    came, failure = [], drill.lacking(running)
    if not failure:
        came, failure = rounds(running, drill.name, times, lambda: once(running, drill), told)
    if failure:
        tell(f"{drill.name}: {failure}")
    return figures_of(drill, came, failure)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("faults", nargs="*", help="only these")
    args = options.parse_args()
    if unknown := set(args.faults) - {drill.fault for drill in DRILLS}:
        options.error(f"no drill for {', '.join(sorted(unknown))}")
    times = times_asked(args)
    here = machine.describe()
    tell(machine.in_words(here))

    asked = [drill for drill in DRILLS if not args.faults or drill.fault in args.faults]
    rows = []
    for without_log in (False, True):
        if drills := [drill for drill in asked if drill.is_without_log is without_log]:
            with cluster_for_drills(without_log=without_log) as running:
                rows += [carried_out(running, drill, times) for drill in drills]
    load = machine.load()

    print(f"\n{machine.in_words(here)}, load {load}\n")
    show(rows, SHOWN, ["symptom", "fault"])
    final_line({"bench": "drills", "machine": here, "load": load, "drills": rows})


if __name__ == "__main__":
    main()
