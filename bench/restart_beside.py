"""kill -9 of a rank on this tree and on another checkout, in turns: is a restart as fast as it was?

    python bench/restart_beside.py ../before               6 minutes on two cores that do nothing else
    python bench/restart_beside.py ../before --minutes 2

The other checkout needs an environment of its own (`make setup` there). A cluster of each is up all the time; a turn is
a fresh job on one of them, whose ranks are killed one after another while the other cluster has no job. Both run this
tree's workload. The first kill of a job is left out: it finds other caches than the ones after it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import IO, Any

HERE = Path(__file__).resolve().parents[1]
SETTLE_S = 2.0
"""Time that a job's first ranks train before a kill."""
BETWEEN_S = 1.6
"""The same for later ones. The reserve is refilled after a second."""
RESAMPLES = 4000
LIMIT_S = 120.0

Kill = dict[str, float]
"""The phases of one restart in seconds, and their sum `whole`."""


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


class Side:
    """A tree, the process that serves its cluster, and the kills so far, a list for each turn."""

    def __init__(self, tree: Path, arguments: Sequence[str]) -> None:
        self.commit = _git(tree, "rev-parse", "--short", "HEAD") + ("+" if _git(tree, "status", "--short") else "")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._process = subprocess.Popen(
            (tree / ".venv/bin/python", HERE / "bench/restart_beside.py", str(tree), "--serve", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # Python finds its packages there first.
            cwd=tree,
        )
        self.turns: list[list[Kill]] = []

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def answer(self) -> Any:
        line = self._pipes[1].readline()
        if not line:
            raise SystemExit(f"the cluster of {self.commit} ended; its messages are above")
        return json.loads(line) if line.strip() else None

    def turn(self, kills: int) -> None:
        self._pipes[0].write(f"{kills}\n")
        self._pipes[0].flush()
        self.turns.append(self.answer())

    def end(self) -> None:
        self._pipes[0].close()
        self._process.wait()


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(
        ("git", "-C", str(tree), *arguments), capture_output=True, text=True, check=True
    ).stdout.strip()


@contextlib.contextmanager
def sides(trees: Sequence[Path], arguments: Sequence[str]) -> Iterator[list[Side]]:
    started: list[Side] = []
    try:
        for tree in trees:
            started.append(Side(tree, arguments))
            started[-1].answer()
        yield started
    finally:
        for side in started:
            side.end()


def ratio(turns: Sequence[list[Kill]], base: Sequence[list[Kill]], of: Callable[[Kill], float]) -> tuple[float, ...]:
    """Return the ratio of the medians and its 95 % interval: turns are drawn anew, since the kills of one are alike."""

    def quotient(these: Sequence[list[Kill]], those: Sequence[list[Kill]]) -> float:
        return median(of(kill) for turn in these for kill in turn) / median(of(kill) for turn in those for kill in turn)

    draw = random.Random(1)
    pairs = list(zip(turns, base, strict=True))
    drawn = sorted(quotient(*zip(*draw.choices(pairs, k=len(pairs)), strict=True)) for _ in range(RESAMPLES))
    return quotient(turns, base), drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40]


def show(own: Side, others: Sequence[Side]) -> None:
    """Print medians, ratios and phases."""
    import machine
    from report import final_line, rounded, table

    rows, phases, figures = [], [], {}
    for side in (own, *others):
        found = [kill for turn in side.turns for kill in turn]
        low, middle, high = (round(1000 * value, 1) for value in quantiles((kill["whole"] for kill in found), n=4))
        over = [rounded(value) for value in ratio(own.turns, side.turns, lambda kill: kill["whole"])]
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
    with sides([HERE, *args.tree], ["--ranks", str(args.ranks), "--nodes", str(args.nodes)]) as (own, *others):
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
