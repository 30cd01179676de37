"""Odds of backup plans: which losses of machines leave every shard in memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

import msgspec

from holdfast.cli.checkpoints.ckpt_sizes import size_text
from holdfast.cli.output.tables import render


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of one kind, and how many of them leave every shard in memory."""

    loss: str
    losses: int
    survived: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for copies; `memory_factor` is their memory as a multiple of the job's shards."""

    plan: str
    in_use: bool = False
    offered: bool = False
    memory_factor: float
    odds: tuple[Loss, ...]


def in_use_and_better(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plan in use, and those under which more losses of some kind survive and of no kind fewer."""
    ours = [plan for plan in plans if plan.in_use]
    return ours + [plan for plan in plans for mine in ours if _is_better(plan, mine)]


def _is_better(plan: Plan, mine: Plan) -> bool:
    survived = [(theirs.survived, our.survived) for theirs, our in zip(plan.odds, mine.odds, strict=False)]
    return all(theirs >= our for theirs, our in survived) and any(theirs > our for theirs, our in survived)


def odds_table(plans: Sequence[Plan], node_bytes: float | None = None) -> str:
    """Return a row for each plan and a column for each kind of loss; `node_bytes`: mean size of a node's shards."""
    rows = [
        [
            f"{it.plan} (in use)" if it.in_use else it.plan if it.offered else f"{it.plan} *",
            _memory(it.memory_factor, node_bytes),
            *(share_text(loss.survived, loss.losses) for loss in it.odds),
        ]
        for it in plans
    ]
    return render(["PLAN", "MEMORY", *(_header(it.loss) for it in plans[0].odds)], rows)


def share_text(survived: int, losses: int) -> str:
    """Return a share in percent, with the digits that distinguish it from all: 98.4 %, 99.9992 %."""
    if survived == losses:
        return "100 %"
    missing = 100 * (losses - survived) / losses
    return f"{100 - missing:.{max(1, 1 - floor(log10(missing)))}f} %"


def _header(loss: str) -> str:
    """Return "GROUP dp" for "group dp": names of dimensions keep their case."""
    kind, _, name = loss.partition(" ")
    return f"GROUP {name}" if kind == "group" else loss.upper()


def _memory(factor: float, node_bytes: float | None) -> str:
    if node_bytes is None:
        return f"{factor:.3g} x"
    return f"{factor:.3g} x, {size_text(round(factor * node_bytes))} a node"
