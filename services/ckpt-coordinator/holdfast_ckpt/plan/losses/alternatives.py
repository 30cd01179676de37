"""Other plans for a job's copies, with their odds and memory, beside the plan in use.

A second copy and parity are compared only: vaults keep one copy. Parity k+m: m more nodes keep the parity of the shards
of k nodes (Reed-Solomon). Any m of these k+m nodes may be lost; the loss of more is fatal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import msgspec

from holdfast.topology import Topology
from holdfast_ckpt.plan.backup_plan import BackupStrategy, machine_mesh, plan_backups
from holdfast_ckpt.plan.losses.odds import Guard, LossOdds, loss_odds

PARITIES = ((4, 1), (8, 1), (4, 2), (8, 2))
"""Shards that are guarded together, and the nodes that keep their parity."""


class PlanOdds(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for a job's copies, what it survives and what it costs."""

    plan: str
    in_use: bool = False
    offered: bool = False
    """True if it is a value of `[checkpoint] backup_strategy`."""
    memory_factor: float
    """Memory of copies, as a multiple of the job's shards."""
    odds: tuple[LossOdds, ...]


class _Place(NamedTuple):
    """Machines of a job; `racks` by node rank, () if no node named its rack."""

    topology: Topology
    racks: tuple[str, ...]


def compare_plans(
    topology: Topology, strategy: str, keepers: Sequence[int | None], racks: tuple[str, ...] = ()
) -> tuple[PlanOdds, ...]:
    """Return the plan in use, with the keepers that it really has, and then all others. `racks`: of each node rank."""
    place = _Place(topology, racks)
    found = [_copies(place, strategy, [keepers], in_use=True, offered=True)]
    if topology.nnodes == 1:
        return tuple(found)
    for other in BackupStrategy:
        if other != strategy:
            found.append(_copies(place, str(other), [plan_backups(topology, other, racks).keeper], offered=True))
    order = diagonal_order(topology)
    if topology.nnodes > 2:
        first = plan_backups(topology, racks=racks).keeper
        found.append(_copies(place, "cross-group, two copies", [first, _second_keepers(first, order)]))
    found += [_parity(place, order, k, m) for k, m in PARITIES if topology.nnodes >= k + m]
    return tuple(found)


def diagonal_order(topology: Topology) -> list[int]:
    """Return the nodes in an order in which neighbours differ in all dimensions of the machines' mesh, but for the few
    at its seams: neighbours share no parallel group then.
    """
    sizes = machine_mesh(topology) or (topology.nnodes,)
    number = {place: node for node, place in enumerate(product(*map(range, sizes)))}
    order: dict[int, None] = {}
    for place in number:
        while number[place] not in order:
            order[number[place]] = None
            place = tuple((index + 1) % size for index, size in zip(place, sizes, strict=True))
    return list(order)


def _copies(
    place: _Place,
    plan: str,
    copies: Sequence[Sequence[int | None]],
    *,
    in_use: bool = False,
    offered: bool = False,
) -> PlanOdds:
    """Return the odds of a plan. Each of `copies` has the keeper of every node; a node that keeps its own has none."""
    holders = [
        frozenset({node} | {keeper for keeper in keepers if keeper is not None})
        for node, keepers in enumerate(zip(*copies, strict=True))
    ]
    return PlanOdds(
        plan=plan,
        in_use=in_use,
        offered=offered,
        memory_factor=sum(len(each) - 1 for each in holders) / len(holders),
        odds=loss_odds((Guard(each, len(each) - 1) for each in holders), *place),
    )


def _second_keepers(first: Sequence[int], order: list[int]) -> list[int]:
    """Return for each node the one that follows its first keeper."""
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [following[keeper] if following[keeper] != node else following[node] for node, keeper in enumerate(first)]


def _parity(place: _Place, order: list[int], k: int, m: int) -> PlanOdds:
    """Guard each k nodes in this order by parity on the m that follow."""
    nnodes = len(order)
    firsts = range(0, nnodes, k)
    guards = []
    for first in firsts:
        own = min(k, nnodes - first)
        guards.append(Guard(frozenset(order[(first + place) % nnodes] for place in range(own + m)), m))
    return PlanOdds(
        plan=f"parity {k}+{m}",
        memory_factor=m * len(firsts) / nnodes,
        odds=loss_odds(guards, *place),
    )
