"""One drill for each symptom of ByteRobust's Table 1 that is noticed today: broken, noticed, decided, training again.

    python bench/drills.py            3 times each; some ten minutes
    python bench/drills.py --quick    once each
    python bench/drills.py oom-kill lose-node

Each drill is a row of `tests/e2e/drills.py`: a job of four ranks on two nodes, a third stands by; something is broken
by `holdfast inject`. Where this machine lets nodes have networks of their own, they have them. What cannot be made
here, or is not noticed yet, is listed with the reason. A drill that fails is told, and the others go on.
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
from drills import DRILLS, ENVIRONMENT, Drill, Outcome, carry_out, divide_gpus

from holdfast.embedded.ports import reserve_ports
from holdfast.faults.rights import Need, lacking

NODES = 3
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
    "heals_by": "heals by",
}


def rounds(cluster: Cluster, drill: Drill, times: int) -> tuple[list[Outcome], str]:
    """What came of each, and why it ended early."""
    came: list[Outcome] = []
    for number in range(times):
        try:
            cluster.make_whole()
            with reserve_ports({}, None) as ports:
                port = ports.nats
            came.append(one := carry_out(cluster, drill, port, LIMIT_S))
        except AssertionError as error:
            cluster.command("inject", "--undo")
            return came, str(error).splitlines()[0]
        tell(
            f"{drill.name} [{number + 1}/{times}]: noticed after {one.noticed_s:.2f} s as {one.incident}, "
            f"{one.decision} after {one.decided_s:.2f} s, trains after {one.trains_s:.2f} s (load {machine.load()})"
        )
    return came, ""


def figures_of(drill: Drill, came: list[Outcome], failure: str) -> dict[str, Any]:
    """One row."""
    return {
        "symptom": drill.symptom,
        "fault": drill.name,
        "rounds": len(came),
        "recovered": sum(one.outcome == "recovered" for one in came),
        "noticed_s": rounded(median([one.noticed_s for one in came])),
        "decided_s": rounded(median([one.decided_s for one in came])),
        "trains_s": rounded(median([one.trains_s for one in came])),
        "trains_s_max": rounded(max((one.trains_s for one in came), default=None)),
        "decision": ", ".join(sorted({one.decision for one in came})),
        "incident": ", ".join(sorted({one.incident for one in came})),
        "heals_by": drill.heals_by,
        "not_carried_out": failure,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    if unknown := set(args.faults) - {drill.fault for drill in DRILLS}:
        parser.error(f"no drill for {', '.join(sorted(unknown))}")
    times = args.rounds or (1 if args.quick else 3)
    here = machine.describe()
    tell(machine.in_words(here))

    rows = []
    directory = Path(tempfile.mkdtemp(prefix="holdfast-drills-"))
    running = Cluster(directory / "cluster", ENVIRONMENT)
    try:
        divide_gpus(running.layout, NODES)
        running.up(NODES, namespaces=not lacking(Need.LINKS) and not lacking(Need.MOUNT))
        for drill in DRILLS:
            if args.faults and drill.fault not in args.faults:
                continue
            came, failure = [], drill.lacking(running)
            if not failure:
                came, failure = rounds(running, drill, times)
            if failure:
                tell(f"{drill.name}: {failure}")
            rows.append(figures_of(drill, came, failure))
        load = machine.load()
    except BaseException:
        tell(f"logs are kept in {directory}")
        raise
    finally:
        for job in running.jobs:
            job.leave()
        running.close()
        running.command("inject", "--undo", check=False)
        running.command("down", check=False)
    shutil.rmtree(directory)

    print(f"\n{machine.in_words(here)}, load {load}\n")
    done = [row for row in rows if row["rounds"]]
    table([*SHOWN.values()], [[row[name] for name in SHOWN] for row in done])
    if left := [(row["symptom"], row["fault"], row["not_carried_out"]) for row in rows if row["not_carried_out"]]:
        print()
        table(("symptom", "fault", "not carried out, or ended early"), left)
    print()
    final_line({"bench": "drills", "machine": here, "load": load, "drills": rows})


if __name__ == "__main__":
    main()
