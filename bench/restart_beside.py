"""kill -9 of a rank on this tree and on another checkout, in turns: is a restart as fast as it was?

    python bench/restart_beside.py ../before               6 minutes on two cores that do nothing else
    python bench/restart_beside.py ../before --minutes 2

The other checkout needs an environment of its own (`make setup` there). A cluster of each is up all the time; a turn is
a fresh job on one of them, whose ranks are killed one after another while the other cluster has no job. Both run this
tree's workload. The first kill of a job is left out: it finds other caches than the ones after it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import beside
from beside import HERE, ratio, sides

SETTLE_S = 2.0
"""Time that a job's first ranks train before a kill."""
BETWEEN_S = 1.6
"""The same for later ones. The reserve is refilled after a second."""
LIMIT_S = 120.0

Kill = dict[str, float]
"""The phases of one restart in seconds, and their sum `whole`."""


class Side(beside.Side):
    """A tree, and the kills so far, a list for each turn."""

    def __init__(self, tree: Path, script: Path, arguments: Sequence[str]) -> None:
        super().__init__(tree, script, arguments)
        self.turns: list[list[Kill]] = []

    def turn(self, kills: int) -> None:
        self.turns.append(self.ask(str(kills)))


def serve(tree: Path, world_size: int, nodes: int) -> None:
    """Run a cluster of this tree; for each number on stdin restart a fresh job as often, and answer with the kills."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # The tree's own launchers start it and read its events.
    sys.path.insert(0, str(tree / "bench"))
    import launchers
    import records
    import restart

    launchers.WORKLOAD = HERE / "bench" / "workload.py"
    with launchers.cluster(nodes) as (running, root):
        answers.write("\n")
        for turn, line in enumerate(sys.stdin):
            job, kills = f"turn-{turn}", []
            place = launchers.Place.fresh(root, job)
            ranks = records.Records(place.record, world_size)
            running.submit(job, place, nodes, world_size // nodes)
            before = ranks.await_generation(LIMIT_S)
            time.sleep(SETTLE_S)
            for number in range(int(line) + 1):
                killed_at = time.time()
                os.kill(before.pids[(turn + number) % world_size], signal.SIGKILL)
                after = ranks.await_generation(LIMIT_S, but=before.pids)
                time.sleep(BETWEEN_S)
                running.await_event(job, "incident_closed", LIMIT_S, number + 1)
                phases = restart._phases(restart.PHASES, killed_at, restart._holdfast_ends(running, job, after))
                kills.append(phases | {"whole": after.first_step - killed_at})
                before = after
            running.stop(job)
            answers.write(json.dumps(kills[1:]) + "\n")


def wholes(side: Side) -> list[list[float]]:
    return [[kill["whole"] for kill in turn] for turn in side.turns]


def show(own: Side, others: Sequence[Side]) -> None:
    """Print medians, ratios and phases."""
    import machine
    from report import final_line, rounded, table

    rows, phases, figures = [], [], {}
    for side in (own, *others):
        found = [kill for turn in side.turns for kill in turn]
        low, middle, high = (round(1000 * value, 1) for value in quantiles((kill["whole"] for kill in found), n=4))
        over = [rounded(value) for value in ratio(wholes(own), wholes(side))]
        rows.append((side.commit, len(found), middle, low, high, *over))
        medians = {name: round(1000 * median(kill[name] for kill in found), 1) for name in found[0]}
        phases.append((side.commit, *medians.values()))
        figures[side.commit] = {"kills": len(found), "median_ms": middle, "own_over_this": over, "phases_ms": medians}
    print(f"\n{machine.in_words(machine.describe())}\n")
    table(("tree", "kills", "median ms", "25 %", "75 %", f"{own.commit} over it", "from", "to"), rows)
    print("\nmedians of the phases, ms")
    table(("tree", *next(iter(figures.values()))["phases_ms"]), phases)
    print()
    final_line({"bench": "restart_beside", "load": machine.load(), "trees": figures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=lambda name: Path(name).resolve(), nargs="+", help="the checkouts to compare with")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--quick", action="store_true", help="2 turns of 2 kills")
    parser.add_argument("--kills", type=int, default=10, help="in a turn")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.tree[0], args.ranks, args.nodes)
        return
    from report import tell

    kills = 2 if args.quick else args.kills
    arguments = ("--ranks", str(args.ranks), "--nodes", str(args.nodes))
    with sides(Side, [HERE, *args.tree], Path(__file__), arguments) as (own, *others):
        until = time.monotonic() + 60 * args.minutes
        order = [own, *others]
        while len(own.turns) < 2 or (not args.quick and time.monotonic() < until):
            for side in order:
                side.turn(kills)
            order.reverse()
            so_far = {side.commit: median(kill["whole"] for turn in side.turns for kill in turn) for side in order}
            tell(f"{len(own.turns)} turns: " + ", ".join(f"{name} {1000 * s:.1f} ms" for name, s in so_far.items()))
        show(own, others)


if __name__ == "__main__":
    main()
