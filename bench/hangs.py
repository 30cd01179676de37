"""Emulated hangs of 256 to 2,048 ranks: is the machine at fault among the suspects, and is it alone there?

    python bench/hangs.py                  1,500 hangs; some three quarters of an hour
    python bench/hangs.py --quick          100 hangs of 256 ranks
    python bench/hangs.py --hangs 300 --kind "link cut" --show

Ctrl-C ends it early; what was done is told.

Each hang is a job with a mesh and a fault drawn by a seed (`holdfast_proving.emulated_hangs`): Megatron's 1F1B with
tensor, expert and data parallelism, or FSDP with replicas. A small simulation runs the programs of all ranks, hosts
ahead of their devices, until nothing goes on; who blocks where is found by it. What is seen then, stacks of ranks and
data loaders and records of collectives, is judged as production does (`judge_hang`), and the machines that are
suspected are compared with the truth. In a quarter of the hangs one in a hundred of the healthy ranks has lost its
trace, and one its stack.

Each hang is looked at three times. `launched`: by agents, which have kernels timed or marked, and which tell what their
nodes know of the network (half of the jobs speak TCP, half RDMA). `not marked`: the same where kernels are not timed
because they are to run in the order of their launch, and not marked either. `strangers`: dumps without any word of the
network; three of ten tell whether kernels have started.

`inside`: every machine at fault is suspected. `alone`: no other is. Of a cut link both ends are at fault.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter

import machine
from report import final_line, median, percentile, rounded, table, tell

from holdfast.engines.hang.hang_verdict import judge_hang
from holdfast_proving.emulated_hangs.scenes import HOW, KINDS, How, Seen, hung_job, observe

WORLDS = (256,) * 16 + (512,) * 6 + (1024,) * 2 + (2048,)
AIM_ALONE = 0.978


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 hangs of 256 ranks")
    parser.add_argument("--hangs", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0, help="begin after this seed")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of fault")
    parser.add_argument("--show", action="store_true", help="tell each hang whose machine is not named alone")
    args = parser.parse_args()
    count = 100 if args.quick else args.hangs
    worlds = (256,) if args.quick else WORLDS
    kinds = (args.kind,) if args.kind else KINDS

    found: dict[tuple[How, str], Counter[str]] = {(how, kind): Counter() for how in HOW for kind in kinds}
    took: list[float] = []
    seed, done = args.seed, 0
    with contextlib.suppress(KeyboardInterrupt):
        while done < count:
            seed += 1
            kind = kinds[seed % len(kinds)]
            hung = hung_job(kind, seed, worlds[seed // len(kinds) % len(worlds)])
            if hung is None:
                continue
            seen = {how: _counted(observe(hung, how), took, show=args.show, how=how) for how in HOW}
            for how, counts in seen.items():
                found[how, kind].update(counts)
            done += 1
            if done % 100 == 0:
                tell(f"[{done}/{count}] hangs")

    here = machine.describe()
    if not done:
        return
    print(f"\n{machine.in_words(here)}")
    rows: dict[How, list[dict[str, object]]] = {}
    totals: dict[How, Counter[str]] = {}
    for how in HOW:
        rows[how] = [_row(kind, found[how, kind]) for kind in kinds if found[how, kind]["hangs"]]
        totals[how] = sum((found[how, kind] for kind in kinds), Counter())
        rows[how].append(_row("all", totals[how]))
        print(f"\n{how}\n")
        table(tuple(rows[how][0]), [tuple(row.values()) for row in rows[how]])
    print(f"\naim: inside always, alone in {AIM_ALONE:.1%}\n")
    final_line(
        {
            "bench": "hangs",
            "machine": here,
            "hangs": done,
            "seeds": [args.seed + 1, seed],
            "by_kind": rows,
            "inside": {how: rounded(total["inside"] / done) for how, total in totals.items()},
            "alone": {how: rounded(total["alone"] / done) for how, total in totals.items()},
            "judge_median_s": rounded(median(took), 3),
            "judge_p99_s": rounded(percentile(took, 99), 3),
        }
    )


def _counted(hang: Seen, took: list[float], *, show: bool, how: How) -> dict[str, int]:
    """Judge one hang, and compare with the truth."""
    began = time.perf_counter()
    verdict = judge_hang(hang.stacks, hang.traces, hang.layout.mesh, hang.layout.ranks_per_node, links=hang.links)
    took.append(time.perf_counter() - began)
    suspects = set(verdict.nodes)
    inside, alone = hang.machines <= suspects, hang.machines == suspects
    if show and not alone:
        words = f"{how}, {hang.kind} seed {hang.seed}, {hang.layout.ranks} ranks: {hang.words}"
        tell(f"{words}; {sorted(hang.machines)} of {len(suspects)} suspected; {verdict.summary[:300]}")
    return {
        "hangs": 1,
        "inside": inside,
        "alone": alone,
        "misled": not inside and bool(suspects),
        "suspected": len(suspects),
    }


def _row(kind: str, counts: Counter[str]) -> dict[str, object]:
    hangs = counts["hangs"]
    return {
        "fault": kind,
        "hangs": hangs,
        "inside %": rounded(100 * counts["inside"] / hangs, 1),
        "alone %": rounded(100 * counts["alone"] / hangs, 1),
        "others named only": counts["misled"],
        "machines suspected, mean": rounded(counts["suspected"] / hangs, 1),
    }


if __name__ == "__main__":
    main()
