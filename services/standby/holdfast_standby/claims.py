"""Claims of jobs for nodes: each is met as a whole, or waits in its turn. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec

from holdfast.events import NodesAwaited, NodesGranted, NodesReleased, NodesRequested
from holdfast.events.parts.job import Grant
from holdfast.settings.pool import PoolPolicy
from holdfast_standby import kept_nodes, sizing
from holdfast_standby.inventory_draft import InventoryDraft
from holdfast_standby.state import WATCHED, Claim, Node, NodeState

CLOCKS_APART = timedelta(minutes=5)
"""A time further in the future is of a clock that is wrong."""


def requested(draft: InventoryDraft, event: NodesRequested) -> None:
    """Note a job's claim; it replaces an older one of the same job."""
    assert event.job is not None
    newest = draft.claims.get(event.job)
    if newest and newest.requested_at >= event.at and not _is_of_a_clock_ahead(newest, event.at, draft.now):
        return  # a late message must not undo a newer claim, nor reopen a claim that was granted or withdrawn
    draft.claims[event.job] = Claim(
        id=event.id,
        job=event.job,
        count=event.count,
        enough=event.enough,
        at_least=event.at_least,
        last_call_s=event.last_call_s,
        requested_at=event.at,
        replaces=(event.generation or 0) > 0 and not event.leaves_reserve,
        incident=event.incident,
        only=tuple(dict.fromkeys(event.only)),
        witnesses=event.witnesses,
        avoid=event.avoid,
        avoid_racks=event.avoid_racks,
        trains_on=event.trains_on,
        is_for_checks=event.purpose == "checks",
    )


def withdrawn(draft: InventoryDraft, event: NodesReleased) -> None:
    """Withdraw the claim of a job that is over."""
    assert event.job is not None
    newest = draft.claims.get(event.job)
    if newest and newest.requested_at > event.at and not _is_of_a_clock_ahead(newest, event.at, draft.now):
        return
    # The claim itself may still be on its way: it is over before it arrives.
    draft.claims[event.job] = Claim(
        id=newest.id if newest else event.id,
        job=event.job,
        count=newest.count if newest else 0,
        requested_at=event.at,
        replaces=False,
        over_at=draft.now,
    )


def _is_of_a_clock_ahead(newest: Claim, at: datetime, now: datetime) -> bool:
    """Return True if the claim was made by a clock that has been put back since: what comes later has earlier times."""
    return newest.requested_at > now + CLOCKS_APART >= at


def grant(draft: InventoryDraft, pool_policy: PoolPolicy) -> None:
    """Serve waiting claims: those of running jobs first, then by time. A claim is met as a whole or waits; an elastic
    job's may be met with fewer nodes, if no more come while it waits.

    Small claims must not starve a large one, so later claims wait behind an earlier one, except behind a claim for more
    nodes than exist: it may never be served. Claims for named nodes neither wait for other claims nor block them, but
    get no witnesses while an earlier one is short of nodes. Some standbys are left to running jobs.
    """
    waiting = sorted((claim for claim in draft.claims.values() if claim.over_at is None), key=_turn)
    if not waiting:
        return
    nodes_watched = sum(node.state in WATCHED for node in draft.nodes.values())
    behind: str | None = None
    is_short = False
    for claim in waiting:
        is_named = bool(claim.only or claim.witnesses)
        reserved = 0
        if is_named or not claim.replaces:
            reserved = sizing.reserve(draft.nodes.values(), pool_policy, draft.now)
        if is_named:
            _grant_named(draft, claim, nodes_watched if is_short else reserved)
            continue
        pool = [node for node in draft.nodes.values() if _is_free(node, claim)]
        free = max(0, len(pool) - reserved)
        if not _is_met(draft, claim, 0 if behind else free):
            is_short = True
            _announce(draft, draft.claims[claim.job], free, behind)
            if not behind and claim.fewest + reserved <= nodes_watched:
                behind = claim.job
            continue
        _hand_over(draft, claim, _preferred(claim, pool)[: 0 if behind else min(claim.count, free)])


def _is_met(draft: InventoryDraft, claim: Claim, free: int) -> bool:
    """Return True if the claim gets what is free: that is enough, or its last call is over, whose begin is noted."""
    if free >= (claim.count if claim.enough is None else claim.enough):
        return True
    if claim.at_least is None or free < claim.at_least:
        if claim.last_call_at is not None:
            draft.claims[claim.job] = msgspec.structs.replace(claim, last_call_at=None)
        return False
    began = claim.last_call_at or draft.now
    draft.claims[claim.job] = msgspec.structs.replace(claim, last_call_at=began)
    return (draft.now - began).total_seconds() >= claim.last_call_s


def _grant_named(draft: InventoryDraft, claim: Claim, reserved: int) -> None:
    """Serve a claim if all named nodes and enough witnesses are free; `reserved` standbys are kept for training."""
    wanted = [draft.nodes.get(name) for name in claim.only]
    free = [node for node in wanted if node is not None and _is_free(node, claim, blocked_too=claim.is_for_checks)]
    pool = [node for node in draft.nodes.values() if _is_free(node, claim) and node not in wanted]
    witnesses = _preferred(claim, pool)[: max(0, min(claim.witnesses, len(pool) - reserved))]
    if len(free) == len(claim.only) and len(free) + len(witnesses) >= claim.count:
        # All ranks meet on the first node. A named node may be unable to reach the others, so witnesses come first.
        _hand_over(draft, claim, witnesses + sorted(free, key=lambda node: _natural(node.id)))
        return
    missing = "; ".join(
        f"there is no node {name}" if node is None else _why_not(node, claim)
        for name, node in zip(claim.only, wanted, strict=True)
        if node not in free
    )
    missing = missing or "no other node is free"
    missing_nodes = tuple(name for name, node in zip(claim.only, wanted, strict=True) if node not in free)
    _announce(draft, claim, len(free), None, missing, missing_nodes)


def _hand_over(draft: InventoryDraft, claim: Claim, nodes: list[Node]) -> None:
    grants = []
    for node in nodes:
        draft.move(node, NodeState.ACTIVE, f"granted to {claim.job}", job=claim.job, epoch=node.epoch + 1)
        granted = draft.nodes[node.id]
        grants.append(
            Grant(
                node=granted.id,
                epoch=granted.epoch,
                instance=granted.instance,
                address=granted.facts.address,
                store_ports=granted.facts.store_ports,
                vault_port=granted.facts.vault_port,
                rack=granted.facts.rack,
            )
        )
    draft.emit(NodesGranted, job=claim.job, incident=claim.incident, claim=claim.id, grants=tuple(grants))
    draft.claims[claim.job] = msgspec.structs.replace(claim, over_at=draft.now)


def _announce(
    draft: InventoryDraft,
    claim: Claim,
    available: int,
    behind: str | None,
    missing: str = "",
    missing_nodes: tuple[str, ...] = (),
) -> None:
    """Report what a claim waits for, once for each change."""
    announced = missing or f"{available} behind {behind}"
    if claim.announced == announced:
        return
    draft.emit(
        NodesAwaited,
        job=claim.job,
        incident=claim.incident,
        claim=claim.id,
        wanted=claim.count if claim.enough is None else claim.enough,
        available=available,
        at_least=claim.at_least,
        last_call_s=claim.last_call_s,
        behind=behind,
        missing=missing,
        missing_nodes=missing_nodes,
        trains_on=claim.trains_on,
    )
    draft.claims[claim.job] = msgspec.structs.replace(claim, announced=announced)


def _is_free(node: Node, claim: Claim, *, blocked_too: bool = False) -> bool:
    is_blocked = node.state is NodeState.EVICTED and blocked_too
    return (node.state is NodeState.STANDBY or is_blocked) and kept_nodes.is_free_for(node, claim)


def _why_not(node: Node, claim: Claim) -> str:
    if node.job:
        return f"{node.id} is used by job {node.job}"
    if not kept_nodes.is_free_for(node, claim):
        return f"{node.id} is kept for job {node.kept_for}, which waits for the steps in its memory"
    return f"{node.id} is {node.state}: {node.reason}"


def _turn(claim: Claim) -> tuple[bool, datetime, str]:
    return (not claim.replaces, claim.requested_at, claim.id)


def _preferred(claim: Claim, pool: list[Node]) -> list[Node]:
    """Return the free nodes in the order in which the claim gets them.

    Nodes in racks that it avoids come after all others, and the nodes that it avoids after these; the worst are last.
    """
    nodes, racks = _by_badness(claim.avoid), _by_badness(claim.avoid_racks)
    return sorted(pool, key=lambda node: (nodes.get(node.id, 0), racks.get(node.facts.rack, 0), _natural(node.id)))


def _by_badness(avoided: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each in the order in which they are granted; `avoided` has the worst first."""
    return {name: len(avoided) - worse for worse, name in enumerate(avoided)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts node-10 after node-9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name) if part]
