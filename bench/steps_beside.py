"""Steps and saves on this tree and on another checkout, in turns of a second: are they as fast as they were?

    python bench/steps_beside.py ../before             5 minutes on two cores that do nothing else
    python bench/steps_beside.py ../before --quick     some seconds of each

- step: a rank in a cluster of each tree, both up and training; while one has its turn, the other's node stands still.
- kept step: the same, and the state (25 MB) is kept in memory at each step.
- save: processes of each tree save a state after each step; how long the call holds training up.

What is compared are turns that lie side by side. A pair of processes is started several times: where its memory lies
makes one up to 15 % slower, and the one that starts first more often, so each tree starts first in every other pair.
The interval is from drawing pairs of processes again, and pairs of turns within them. The state lies in whole pages of
2 MB: elsewhere up to 4 MB at its ends are in small ones, as it happens, and to protect these takes from 0.1 to 0.3 ms
of a save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from beside import HERE, Side, ratio_of_processes, sides

if TYPE_CHECKING:
    import torch

MB = 1_000_000
HUGE_PAGE = 2 << 20
SAVES = 4
"""In one turn."""
WARM_UP_SAVES = 6
PROCESSES = {"step": 4, "kept step": 4}
SAVING_PROCESSES = 8
"""Of each tree, one after the other. Those that measure steps are whole clusters, whose start takes half a minute."""
SHAPES = {"step": (), "kept step": ("--keep", "--width", "1024")}
WARM_UP_STEPS = 20
START_S = 120.0
SHARES = {"step": 0.25, "kept step": 0.25, "save of 50 MB": 0.2, "save of 200 MB": 0.3}
"""Of the whole duration."""


def measures(kind: str) -> contextlib.AbstractContextManager[Callable[[], list[float]]]:
    """Return what measures one turn, in seconds; it imports the bench of the tree that is served."""
    return steps(SHAPES[kind]) if kind in SHAPES else saves(int(kind.split()[2]) * MB)


@contextlib.contextmanager
def steps(shape: tuple[str, ...]) -> Iterator[Callable[[], list[float]]]:
    import launchers
    import opponents
    import records
    import turns

    launchers.WORKLOAD = HERE / "bench" / "workload.py"
    with opponents.opponent(False) as (other, root):
        place = launchers.Place.fresh(root, "steps")
        notes = records.Records(place.record, 1)
        with other.job("steps", place, 1, ("--ckpt-every", "0", *shape)) as modes, contextlib.ExitStack() as held:
            notes.await_generation(START_S, steps=WARM_UP_STEPS)
            side = turns.Side("own", notes, contextlib.nullcontext)

            def turn() -> list[float]:
                held.close()
                found = turns._slice(side)
                held.enter_context(turns.stopped(modes["node"]))
                return [found.step_s]

            yield turn


@contextlib.contextmanager
def saves(nbytes: int) -> Iterator[Callable[[], list[float]]]:
    import checkpoint
    import torch

    torch.set_num_threads(1)
    job = checkpoint.Job(nbytes)
    lay_in_huge_pages(job.tensors)
    with tempfile.TemporaryDirectory() as folder, checkpoint.holdfast_memory(Path(folder)) as save:
        number = 0

        def some(count: int) -> list[float]:
            nonlocal number
            blocked = []
            for _ in range(count):
                number += 1
                began = time.perf_counter()
                save(number, job.state)
                blocked.append(time.perf_counter() - began)
                job.compute()
                job.optimize()
            return blocked

        some(WARM_UP_SAVES)
        # The first finds what the other side has left in the caches.
        yield lambda: some(SAVES + 1)[1:]


def lay_in_huge_pages(tensors: list[torch.Tensor]) -> None:
    """Move what these tensors hold, one behind the other, into memory that begins and ends with a page of 2 MB."""
    import torch

    pages = -(-sum(tensor.nbytes for tensor in tensors) // HUGE_PAGE)
    arena = mmap.mmap(-1, (pages + 1) * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    arena.madvise(mmap.MADV_HUGEPAGE)
    at = -torch.frombuffer(arena, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    for tensor in tensors:
        place = torch.frombuffer(arena, dtype=tensor.dtype, count=tensor.numel(), offset=at).view(tensor.shape)
        tensor.set_(place.copy_(tensor))
        at += tensor.nbytes


def serve(tree: Path, kind: str) -> None:
    """Answer each line with what one turn has measured."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # The tree's own launchers and vaults.
    sys.path.insert(0, str(tree / "bench"))
    with measures(kind) as turn:
        answers.write("\n")
        for _ in sys.stdin:
            answers.write(json.dumps(turn()) + "\n")


def compare(kind: str, trees: list[Path], seconds: float) -> dict[str, object]:
    """Take turns for a while; return medians, the ratio and its interval."""
    from report import rounded, tell

    processes = PROCESSES.get(kind, SAVING_PROCESSES) if seconds else 1
    own_turns, other_turns = [], []
    for number in range(processes):
        turn = -1 if number % 2 else 1
        with sides(Side, trees[::turn], Path(__file__), ("--kind", kind)) as started:
            own, other = started[::turn]
            found = take_turns(own, other, seconds / processes)
        own_turns.append(found[own])
        other_turns.append(found[other])
    own_ms, other_ms = (
        1000 * median(value for process in turns for turn in process for value in turn)
        for turns in (own_turns, other_turns)
    )
    over = [rounded(value) for value in ratio_of_processes(own_turns, other_turns)]
    tell(f"{kind}: {own.commit} {own_ms:.3f} ms, {other.commit} {other_ms:.3f} ms, ratio {over}")
    return {"turns": sum(map(len, own_turns)), "own_ms": rounded(own_ms), "other_ms": rounded(other_ms), "ratio": over}


def take_turns(own: Side, other: Side, seconds: float) -> dict[Side, list[list[float]]]:
    until = time.monotonic() + seconds
    found: dict[Side, list[list[float]]] = {own: [], other: []}
    order = [own, other]
    for side in order:
        side.ask("")
    while len(found[own]) < 4 or time.monotonic() < until:
        for side in order:
            found[side].append(side.ask(""))
        order.reverse()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=lambda name: Path(name).resolve(), help="the checkout to compare with")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true", help="four turns of each")
    parser.add_argument("--kind", help=f"one of {', '.join(SHARES)}; all of them by default")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.tree, args.kind)
        return
    import machine
    from report import final_line, table

    kinds = [args.kind] if args.kind else list(SHARES)
    whole_s = 0.0 if args.quick else 60 * args.minutes / sum(SHARES[kind] for kind in kinds)
    results = {kind: compare(kind, [HERE, args.tree], SHARES[kind] * whole_s) for kind in kinds}
    print(f"\n{machine.in_words(machine.describe())}\n")
    rows = [(kind, it["turns"], it["own_ms"], it["other_ms"], *it["ratio"]) for kind, it in results.items()]  # type: ignore[misc]
    table(("what", "turns each", "this, ms", "the other, ms", "ratio", "from", "to"), rows)
    print()
    final_line({"bench": "steps_beside", "load": machine.load(), "results": results})


if __name__ == "__main__":
    main()
