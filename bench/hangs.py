"""Emulated hangs of 256 to 2,048 ranks: is the machine at fault among the suspects, and is it alone there?

    python bench/hangs.py                  1,500 hangs; some half an hour
    python bench/hangs.py --quick          100 hangs of 256 ranks
    python bench/hangs.py --hangs 300 --kind "link cut" --show

Each hang is a job with a mesh and a fault drawn by a seed (`tests/emulated_hangs`): Megatron's 1F1B with tensor, expert
and data parallelism, or FSDP with replicas. A small simulation runs the programs of all ranks, hosts ahead of their
devices, until nothing goes on; who blocks where is found by it. What is seen then, stacks of ranks and data loaders and
records of collectives, is judged as production does (`judge_hang`), and the machines that are suspected are compared
with the truth. In a quarter of the hangs one in a hundred of the healthy ranks has lost its trace, and one its stack;
in seven of ten the traces do not tell whether a kernel has started, as NCCL's do not by default.

`inside`: every machine at fault is suspected. `alone`: no other is. Of a cut link both ends are at fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import machine
from report import final_line, median, percentile, rounded, table, tell

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.hangs.verdict import judge_hang
from tests.emulated_hangs.scenes import KINDS, emulate

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

    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    took: list[float] = []
    seed, done = args.seed, 0
    while done < count:
        seed += 1
        kind = kinds[seed % len(kinds)]
        world = worlds[seed // len(kinds) % len(worlds)]
        hang = emulate(kind, seed, world)
        if hang is None:
            continue
        began = time.perf_counter()
        verdict = judge_hang(hang.stacks, hang.traces, hang.layout.mesh, hang.layout.ranks_per_node)
        took.append(time.perf_counter() - began)
        suspects = set(verdict.nodes)
        inside, alone = hang.machines <= suspects, hang.machines == suspects
        found[kind].update(
            hangs=1, inside=inside, alone=alone, misled=not inside and bool(suspects), suspected=len(suspects)
        )
        if args.show and not alone:
            tell(f"{kind} seed {seed}, {world} ranks: {hang.words}; {verdict.summary[:300]}")
        done += 1
        if done % 100 == 0:
            tell(f"[{done}/{count}] hangs")

    rows = [_row(kind, counts) for kind, counts in found.items() if counts["hangs"]]
    total: Counter[str] = sum(found.values(), Counter())
    rows.append(_row("all", total))
    here = machine.describe()
    print(f"\n{machine.in_words(here)}\n")
    table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print(f"\naim: inside always, alone in {AIM_ALONE:.1%}\n")
    final_line(
        {
            "bench": "hangs",
            "machine": here,
            "hangs": done,
            "seeds": [args.seed + 1, seed],
            "by_kind": rows,
            "inside": rounded(total["inside"] / done),
            "alone": rounded(total["alone"] / done),
            "judge_median_s": rounded(median(took), 3),
            "judge_p99_s": rounded(percentile(took, 99), 3),
        }
    )


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
