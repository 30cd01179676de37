"""Whom the analyzer names, and when: one fault in each simulated cluster, by the form of the fault.

python bench/findings.py --seeds 20      some minutes of a core; --form NAME: one, repeatable

The production analyzer runs inside (`analyzer = "engines"`). A line that begins with `naming` is what the fast model of
the analyzer needs for such faults in a scenario (`analyzer = "model"`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import structlog

from holdfast.events import FailSlowLocated, HangFound
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.forms import HANG_FORMS, HIDDEN, LINK
from holdfast_proving.scenario.load import read_scenario

MESHES = (("dp=16", 1), ("dp=4,tp=4", 1), ("pp=2,dp=4,tp=2", 1), ("pp=2,dp=8,tp=2", 2), ("replicate=2,shard=16", 2))
"""Meshes of 16 machines, and the ranks of each machine."""
SLOW_FORMS = ("", LINK, HIDDEN)
SLOWDOWNS = (1.4, 1.8, 3.0)
MACHINE = "gpu-5"
AT_S = 1800.0
SCENARIO = """
title = "one fault"
days = {days}
analyzer = "engines"
machines = [{{ name = "gpu", count = 16 }}]
jobs = [{{ name = "train", nodes = 16, ranks_per_node = {ranks}, mesh = "{mesh}", step_s = 5.0 }}]
strikes = [{{ kind = "one", at_h = 0.5, place = "gpu-5" }}]
[[faults]]
name = "one"
effect = "{effect}"
form = "{form}"
slowdown = {slowdown}
lasts = "repair"
again_h = 0.0
"""


class Named(NamedTuple):
    """The nodes that the first finding of a fault names, and the time until it."""

    nodes: tuple[str, ...]
    after_s: float
    is_certain: bool
    """Its process shows the fault itself."""
    is_convincing: bool = False
    """The nodes are a group that may be evicted at once."""


def first_finding(text: str, seed: int) -> Named:
    cluster = Cluster(read_scenario(text), seed).run(events_max=2_000)
    found = [(at_s, it) for at_s, it in cluster.log if isinstance(it, HangFound | FailSlowLocated) and at_s >= AT_S]
    for at_s, event in found:
        nodes = event.nodes if isinstance(event, HangFound) else _suspects(event)
        if nodes or isinstance(event, HangFound):
            is_hang = isinstance(event, HangFound)
            return Named(nodes, at_s - AT_S, is_hang and event.is_machine, is_hang and bool(event.group))
    return Named((), found[-1][0] - AT_S if found else 0.0, False)


def _suspects(event: FailSlowLocated) -> tuple[str, ...]:
    return event.nodes or tuple(sorted({end for link in event.links for end in link})) or event.one_of


def texts(effect: str, form: str) -> Iterator[str]:
    """Return a scenario for each mesh, and for slowness for each factor."""
    for mesh, ranks in MESHES:
        for slowdown in SLOWDOWNS if effect == "slow" else (1.5,):
            days = 0.03 if effect == "hang" else 0.025
            yield SCENARIO.format(effect=effect, form=form, mesh=mesh, ranks=ranks, slowdown=slowdown, days=days)


def shares(named: list[Named]) -> dict[str, float]:
    """Return the shares that `naming` has in a scenario, and the delays."""
    count = len(named)
    alone = [it for it in named if it.nodes == (MACHINE,)]
    groups = [it for it in named if MACHINE in it.nodes and len(it.nodes) > 1]
    wrong = [it for it in named if it.nodes and MACHINE not in it.nodes]
    after_s = [it.after_s for it in named if it.nodes]
    return {
        "faults": count,
        "machine": round(len(alone) / count, 3),
        "group": round(len(groups) / count, 3),
        "wrong": round(len(wrong) / count, 3),
        "nobody": round(sum(not it.nodes for it in named) / count, 3),
        "group_size": median([len(it.nodes) for it in groups]) if groups else 0,
        "is_convincing": round(sum(it.is_convincing for it in groups) / len(groups), 3) if groups else 0.0,
        "is_certain": round(sum(it.is_certain for it in alone) / len(alone), 3) if alone else 0.0,
        "found_after_s": round(median(after_s), 1) if after_s else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="for each mesh")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one seed for each mesh")
    parser.add_argument(
        "--form", action="append", help='a form of hangs or slowness; "": a machine that computes slowly'
    )
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    seeds = range(asked.first_seed, asked.first_seed + (1 if asked.quick else asked.seeds))
    table: dict[str, dict[str, float]] = {}
    for effect, forms in (("hang", HANG_FORMS), ("slow", SLOW_FORMS)):
        for form in forms:
            if asked.form is not None and form not in asked.form:
                continue
            row = shares([first_finding(text, seed) for text in texts(effect, form) for seed in seeds])
            table[f"{effect}: {form or 'computes slowly'}"] = row
            print(f"{effect}, {form or 'computes slowly'}: {row}", file=sys.stderr)
            kept = {key: row[key] for key in ("machine", "group", "wrong", "group_size", "is_certain", "is_convincing")}
            print("  naming = {", ", ".join(f"{key} = {value:g}" for key, value in kept.items()), "}", file=sys.stderr)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
