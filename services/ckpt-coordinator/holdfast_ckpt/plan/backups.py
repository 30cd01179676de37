"""Orders to the vaults of a job's nodes: which node keeps whose copies, and where to look for earlier ones.

Each start of a generation gives a plan, which holds until the next. It is stored whole, so that the same orders can be
given again at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from holdfast.events import GenerationStarted
from holdfast.events.parts.persist_every import PersistEvery
from holdfast.orders.backup import BackupOrder, Replica, VaultAddress, submission_ms
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.backup_plan import BackupStrategy, Protects, plan_backups
from holdfast_ckpt.plan.certified import still_certified, still_held
from holdfast_ckpt.plan.losses.alternatives import PlanOdds, compare_plans
from holdfast_ckpt.plan.records import HeldShards, JobBackups, VaultLayout
from holdfast_ckpt.plan.replica_groups import replica_groups

LAYOUTS_REMEMBERED = 4
"""Layouts of a job before the present one: nodes look there for shards that no node has reported."""

SOURCES_MAX = 4
"""Vaults that a node asks for earlier shards. Each that is gone costs the restart a failed connection."""

_REACHABLE = "a vault that other nodes may reach (outside loopback it needs [network] certificates or plain_text)"

NAMED_MAX = 4
"""Nodes named in a reason."""


def plan_generation(
    before: JobBackups | None,
    event: GenerationStarted,
    policy: CheckpointPolicy,
    held: Mapping[int, HeldShards],
    decision: str,
) -> JobBackups | None:
    """Return the backups of a new generation; None if it is not newer than `before`, or the event lacks fields. `held`
    has the shards known to be in memory by node rank; `decision` is the id of this decision.
    """
    assert event.job is not None
    if event.submitted_at is None or not event.nproc_per_node:
        return None  # from a controller of a release without backups
    submitted_ms, generation = submission_ms(event.submitted_at), event.generation or 0
    if before and (before.submitted_ms, before.generation) >= (submitted_ms, generation):
        return None
    if before and before.submitted_ms != submitted_ms:
        before = None
    mesh = Mesh.parse(event.mesh) if event.mesh else None
    topology = Topology.of(len(event.nodes), event.nproc_per_node, mesh)
    racks = event.racks if len(event.racks) == len(event.nodes) else ()
    plan = plan_backups(topology, BackupStrategy(policy.backup_strategy), racks)
    vaults = event.vaults if len(event.vaults) == len(event.nodes) else ("",) * len(event.nodes)
    keepers = tuple(
        keeper if keeper != node and vaults[node] and vaults[keeper] else None
        for node, keeper in enumerate(plan.keeper)
    )
    protects, reason = plan.protects, plan.reason
    if missing := [node for node, vault in zip(event.nodes, vaults, strict=True) if not vault]:
        protects = Protects.NOTHING
        if len(missing) == len(event.nodes):
            reason = f"no node has {_REACHABLE}: there are no copies"
        else:
            reason += f"; but {_names(missing)} without {_REACHABLE} can neither send copies nor keep them"
    layout = VaultLayout(nodes=event.nodes, vaults=vaults, keepers=keepers, racks=racks)
    wanted, step_s = event.persist_every or policy.persist_every, before.step_s if before else None
    past = [old for old in _past(before) if len(old.nodes) == len(layout.nodes)]
    return JobBackups(
        job=event.job,
        submitted_ms=submitted_ms,
        generation=generation,
        nproc_per_node=event.nproc_per_node,
        planned_at=event.at,
        ordered_by=decision,
        strategy=plan.strategy,
        protects=protects,
        reason=reason,
        every=max(policy.backup_every, before.every) if before else policy.backup_every,
        layout=layout,
        sources=_sources(layout, past, held),
        earlier=tuple(old for old in past if old != layout)[:LAYOUTS_REMEMBERED],
        held=still_held(before.held, event.restore_at_most) if before else None,
        complete=still_held(before.complete, event.restore_at_most) if before else None,
        frozen=still_held(before.frozen, event.restore_at_most) if before else None,
        frozen_until=before.frozen_until if before else 0,
        certified_up_to=still_certified(before.certified_up_to, event.restore_at_most) if before else None,
        step_s=step_s,
        persist=wanted,
        persist_every=PersistEvery.parse(wanted).in_steps(step_s, before.persist_every if before else 0),
        mesh=event.mesh or "",
        # The same groups put shared copies together again.
        replicas_max=before.replicas_max if before else policy.replicas_max,
        odds=_odds(before, topology, plan.strategy, layout),
    )


def orders_of(plan: JobBackups) -> list[BackupOrder]:
    """Return the orders of a job's nodes; the same plan gives the same orders."""
    kept: defaultdict[int | None, list[int]] = defaultdict(list)
    for node_rank, keeper in enumerate(plan.layout.keepers):
        kept[keeper].append(node_rank)
    alike = replica_groups(plan.topology.mesh, plan.replicas_max)
    replicas = [_replica(plan, node_rank) for node_rank in range(len(plan.layout.nodes))] if alike else []
    found = []
    for node_rank in range(len(plan.layout.nodes)):
        own = alike[node_rank * plan.nproc_per_node : (node_rank + 1) * plan.nproc_per_node]
        others = sorted({rank // plan.nproc_per_node for each in own for rank in each})
        found.append(_order(plan, node_rank, kept[node_rank], own, [replicas[other] for other in others]))
    return found


def idle_orders(plan: JobBackups, cause: str, reason: str) -> list[BackupOrder]:
    """Return orders of a finished job's nodes to send and look for nothing. A node that only left the job gets no
    order: it goes on answering the vaults that look for its shards.
    """
    return [
        BackupOrder(
            node=node,
            job=plan.job,
            submitted_ms=plan.submitted_ms,
            world_size=len(plan.layout.nodes) * plan.nproc_per_node,
            generation=plan.generation,
            node_rank=node_rank,
            nproc_per_node=plan.nproc_per_node,
            number=plan.number + 1,
            reason=reason,
            cause=cause,
        )
        for node, node_rank in nodes_of(plan).items()
    ]


def job_of_node(plans: Iterable[JobBackups]) -> dict[str, str]:
    """Return the job that each node serves: if two plans name it, the job that started later."""
    return {node: plan.job for plan in sorted(plans, key=lambda plan: plan.planned_at) for node in plan.layout.nodes}


def _order(
    plan: JobBackups,
    node_rank: int,
    keeps: Iterable[int],
    alike: Iterable[tuple[int, ...]],
    replicas: Iterable[Replica],
) -> BackupOrder:
    layout = plan.layout
    keeper = layout.keepers[node_rank]
    return BackupOrder(
        node=layout.nodes[node_rank],
        job=plan.job,
        submitted_ms=plan.submitted_ms,
        world_size=len(layout.nodes) * plan.nproc_per_node,
        generation=plan.generation,
        node_rank=node_rank,
        nproc_per_node=plan.nproc_per_node,
        every=plan.every,
        every_before=plan.every_before,
        every_from=plan.every_from,
        persist_every=plan.persist_every,
        keeper=None if keeper is None else _address(layout.nodes[keeper], layout.vaults[keeper]),
        keeps=tuple(keeps),
        sources=plan.sources[node_rank],
        alike=tuple(alike),
        replicas=tuple(replicas),
        certified_step=plan.held.step if plan.held else None,
        certified_generation=plan.held.generation if plan.held else 0,
        coming_step=plan.coming,
        complete_step=plan.complete.step if plan.complete else None,
        complete_generation=plan.complete.generation if plan.complete else 0,
        frozen_step=plan.frozen.step if plan.frozen else None,
        frozen_generation=plan.frozen.generation if plan.frozen else 0,
        certified_up_to=plan.certified_up_to,
        number=plan.number,
        reason=plan.reason,
        cause=plan.ordered_by,
    )


def _replica(plan: JobBackups, node_rank: int) -> Replica:
    layout = plan.layout
    keeper = layout.keepers[node_rank]
    others = dict.fromkeys(plan.sources[node_rank])
    if keeper is not None:
        others[_address(layout.nodes[keeper], layout.vaults[keeper])] = None
    vault = layout.vaults[node_rank]
    return Replica(
        node_rank=node_rank,
        vault=_address(layout.nodes[node_rank], vault) if vault else None,
        others=tuple(others),
    )


def nodes_of(plan: JobBackups) -> dict[str, int]:
    """Return the present and the remembered nodes of a job, with their last node ranks."""
    found: dict[str, int] = {}
    for layout in _past(plan):
        for node_rank, node in enumerate(layout.nodes):
            found.setdefault(node, node_rank)
    return found


def _odds(before: JobBackups | None, topology: Topology, strategy: str, layout: VaultLayout) -> tuple[PlanOdds, ...]:
    """Return the odds of the new plan and of others: those of `before` if the placement is the same."""
    placement = (topology, strategy, layout.keepers, layout.racks)
    if before and before.odds:
        there = before.layout
        if (before.topology, before.strategy, there.keepers, there.racks) == placement:
            return before.odds
    return compare_plans(topology, strategy, layout.keepers, layout.racks)


def _past(before: JobBackups | None) -> tuple[VaultLayout, ...]:
    return (before.layout, *before.earlier) if before else ()


def _sources(
    layout: VaultLayout, past: list[VaultLayout], held: Mapping[int, HeldShards]
) -> tuple[tuple[VaultAddress, ...], ...]:
    """Return the vaults to ask for the shards of each node rank, the likeliest first. The asking vault finds out which
    of them are alive: this service does not know of the latest evictions.
    """
    if not past:
        return ((),) * len(layout.nodes)
    vaults: dict[str, str] = {}
    for known in (layout, *past):
        for node, vault in zip(known.nodes, known.vaults, strict=True):
            vaults.setdefault(node, vault)
    found = []
    for node_rank, own in enumerate(layout.nodes):
        names = dict.fromkeys(_likely_holders(node_rank, past, held.get(node_rank)))
        there = [_address(name, vaults[name]) for name in names if name != own and vaults.get(name)]
        found.append(tuple(there[:SOURCES_MAX]))
    return tuple(found)


def _likely_holders(node_rank: int, past: list[VaultLayout], held: HeldShards | None) -> Iterator[str]:
    # The keeper before the owner: the owner left the job for a reason.
    if held:
        yield held.keeper
        yield held.node
    for layout in past:
        if (keeper := layout.keepers[node_rank]) is not None:
            yield layout.nodes[keeper]
        yield layout.nodes[node_rank]


def _address(node: str, vault: str) -> VaultAddress:
    host, _, port = vault.rpartition(":")
    return VaultAddress(node=node, host=host, port=int(port))


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return ", ".join(nodes[:NAMED_MAX]) + more
