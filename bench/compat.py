"""Scripts as strangers write them, unchanged, beside torchrun: the same losses, and the truth after a fault.

    python bench/compat.py                      all scripts; half an hour on two cores
    python bench/compat.py --quick              three of them
    python bench/compat.py --only hf-trainer    one of them; --list names them
    python bench/compat.py --write              their lines also go into the table of docs/compatibility.md

Each script (`bench/strangers/scripts`) runs under torchrun and under `holdfast run` with the same flags; losses are
compared digit by digit. Then it is struck: `kill -9` of a rank, SIGSTOP of a rank, a rank that becomes slow. What
Holdfast tells (symptom, rank, steps lost, from which step the job went on) is compared with the script's own log.

Packages that the scripts need (transformers, lightning, accelerate, hydra-core) are installed into an environment in
the cache directory, which has the project's torch; `--python` names another. Scripts whose packages are missing are
listed with the reason.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import machine
from launchers import cluster
from report import final_line, tell
from strangers import environment
from strangers.cases import CASES, Case
from strangers.page import show, write_page
from strangers.runs import Scene, struck, undisturbed
from strangers.slowing import slow
from strangers.verdicts import Row, judge_plain, judge_struck

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
SLOW = "slow"
NODES = 3
"""One for most jobs; two and one that stands by while one becomes slow."""
SETTINGS = {"HOLDFAST_INSPECTIONS_DISABLED": "kernel", "HOLDFAST_LADDER_SLOW_COST_MAX_S": "5"}
"""The kernel's log is the machine's. A slow node is replaced after seconds, not minutes."""


def main() -> None:
    args = parse_arguments()
    # As Ctrl-C: the cluster is to end with this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    if args.quick and not args.only:
        chosen = [case for case in chosen if case.quick]
    packages = {name for case in chosen for name in case.packages}
    python, missing = (args.python, {}) if args.python else environment.prepare(args.place, packages)
    there = environment.versions(python, sorted(packages))
    shown = environment.versions(python, ["torch", *sorted({name for case in CASES for name in case.packages})])
    rows: list[Row] = []
    with cluster(NODES, "--allow-faults", **SETTINGS) as (running, root):
        scene = Scene(root, running, python)
        for case in chosen:
            lacking = [name for name in case.packages if name not in there]
            if lacking:
                reasons = [f"{name}: {missing.get(name, 'not there')}" for name in lacking]
                rows.append(Row(case, missing="; ".join(reasons)))
                continue
            rows.append(carry_out(scene, case, args.faults))
            if args.write:
                write_page(PAGE, rows, machine.in_words(machine.describe()), shown, datetime.now(UTC))
        keep_logs(root, args.keep)
    here = machine.describe()
    print(f"\n{machine.in_words(here)}\n")
    show(rows)
    figures = [row.figures() for row in rows]
    final_line({"bench": "compat", "machine": here, "packages": there, "load": machine.load(), "scripts": figures})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three scripts that need no packages")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--faults", nargs="*", choices=[*FAULTS, SLOW], default=[*FAULTS, SLOW], help="default: all")
    parser.add_argument("--list", action="store_true", help="list the scripts")
    parser.add_argument("--write", action="store_true", help=f"put their lines into docs/{PAGE.name}")
    parser.add_argument("--python", type=Path, help="Python of the scripts; default: an environment of their own")
    parser.add_argument("--place", type=Path, default=environment.default_place(), help="where that environment lies")
    parser.add_argument("--keep", type=Path, help="copy what the runs wrote to this directory")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case.name:18}{case.style}")
        sys.exit(0)
    return args


def carry_out(scene: Scene, case: Case, faults: list[str]) -> Row:
    """Run one script in all ways."""
    tell(f"{case.name}: under torchrun and as a job")
    reference = undisturbed(scene, case, None)
    plain = judge_plain(reference, undisturbed(scene, case, f"{case.name}-plain"))
    tell(f"{case.name}: {plain.same} of {plain.wanted} losses are the same{plain.failure and f'; {plain.failure}'}")
    told = {}
    for fault in (name for name in faults if name in FAULTS):
        struck_run = struck(scene, case, f"{case.name}-{fault}", FAULTS[fault])
        told[fault] = judge_struck(case, fault, reference.notes, struck_run)
        tell(f"{case.name}, {fault}: {told[fault]}")
    slowed = slow(scene, case, f"{case.name}-slow") if SLOW in faults and case.long else None
    if slowed:
        tell(f"{case.name}, slow: {slowed}")
    return Row(case, plain=plain, told=told, slowed=slowed)


def keep_logs(root: Path, place: Path | None) -> None:
    """Copy what the runs and the cluster's processes wrote."""
    if place is not None:
        skipped = shutil.ignore_patterns("nodes", "postgres*", "nats*", "*.sock", "secrets*")
        shutil.copytree(root, place, dirs_exist_ok=True, ignore=skipped)


if __name__ == "__main__":
    main()
