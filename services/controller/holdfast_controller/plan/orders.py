"""The orders to a job's nodes, as a function of its state: the same state gives the same orders at any time."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.checks_program import checks_of
from holdfast.events.parts.job import Grant
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder, Placement, WarmUp
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Checking, ReplayProgress, Running, Starting, Stopping


def orders_in_force(state: JobState, node: str | None = None) -> list[NodeOrder]:
    """Return the orders in force for the job's nodes, or for one; none while the job claims nodes and the others still
    run."""
    members = [(rank, member) for rank, member in _members(state) if node in (None, member.node)]
    if state.is_suspended or isinstance(state.phase, Stopping):
        return [_order(state, member, None) for _, member in members]
    if state.replay is not None:
        return [_order(state, member, _in_group(state, state.replay, rank)) for rank, member in members]
    if members and isinstance(state.phase, Starting | Running | Checking):
        first = _placement(state)
        return [
            _order(state, member, msgspec.structs.replace(first, node_rank=rank, warm_up=_warm_up(state, member)))
            for rank, member in members
        ]
    return []


def idle_orders(state: JobState) -> list[NodeOrder]:
    return [_order(state, member, None) for _, member in _members(state)]


def code_wanted(state: JobState, cause: str | None = None) -> CodeOrder:
    versions = () if state.is_over else state.code.wanted
    spec = state.spec
    return CodeOrder(job=state.job, versions=versions, root=spec.code_root, outside=spec.code_outside, cause=cause)


def leaving_order(state: JobState, member: Grant) -> NodeOrder:
    """Return the order to a node that leaves the job: run nothing, whatever generation the others are at."""
    return _order(state.update(generation=state.next_generation), member, None)


def _members(state: JobState) -> list[tuple[int, Grant]]:
    return [(rank, member) for rank, member in enumerate(state.members) if member]


def _placement(state: JobState) -> Placement:
    """Return what the first node runs; the others run the same under other ranks."""
    host = next(member for member in state.members if member)
    if state.checks is not None:
        return Placement(
            job=checks_of(state.spec, state.checks.suite),
            node_rank=0,
            master_addr=host.address,
            master_port=host.store_ports[state.generation % len(host.store_ports)],
            submitted_at=state.submitted_at,
            purpose="checks",
        )
    # A limit that the user gave may be mistyped: then sound steps would be given up for a start from scratch.
    is_given = state.restore_at_most is not None and state.restore_at_most == state.given_limit
    return Placement(
        job=msgspec.structs.replace(state.spec, allow_scratch=False) if is_given else state.spec,
        node_rank=0,
        master_addr=host.address,
        master_port=host.store_ports[state.generation % len(host.store_ports)],
        restore_at_most=state.restore_at_most,
        refuse_scratch=state.refuses_scratch,
        code_version=state.code.version,
        submitted_at=state.submitted_at,
        purpose=state.purpose,
    )


def _warm_up(state: JobState, member: Grant) -> WarmUp | None:
    ordered = state.ordered_warm_up
    if ordered is None or isinstance(state.phase, Checking):
        return None
    return WarmUp(limit_s=ordered.limit_s, tests_devices=ordered.newcomers is None or member.node in ordered.newcomers)


def _in_group(state: JobState, replay: ReplayProgress, node_rank: int) -> Placement:
    plan = replay.plan
    group = plan.members(plan.group_of(node_rank, replay.phase), replay.phase)
    host = state.members[group[0]]
    assert host is not None, "a replay ends when the job loses a node"
    return Placement(
        job=msgspec.structs.replace(state.spec, nnodes=plan.size, mesh=plan.mesh if state.spec.mesh else None),
        node_rank=group.index(node_rank),
        master_addr=host.address,
        master_port=host.store_ports[state.generation % len(host.store_ports)],
        restore_at_most=replay.restore_at_most,
        code_version=state.code.version,
        submitted_at=state.submitted_at,
        purpose="replay",
        replay=replay.settings,
    )


def _order(state: JobState, member: Grant, placement: Placement | None) -> NodeOrder:
    return NodeOrder(
        node=member.node,
        epoch=member.epoch,
        generation=state.generation,
        job=state.job,
        placement=placement,
        cause=state.ordered_by,
        incident=state.incident.id if state.incident else None,
    )


def superseding(order: NodeOrder, forged: tuple[int, int]) -> NodeOrder:
    """Return `order` in a form that replaces one with the fence `forged`, which was never given."""
    return msgspec.structs.replace(order, supersedes=forged)
