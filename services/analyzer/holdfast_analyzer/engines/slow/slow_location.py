"""Profiles and tests of a slow job's nodes: which tests to run, and which ranks and links are slow. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.engines.slow.locating import find_slow_suspects
from holdfast.engines.slow.sent_profiles import group_times, works
from holdfast.engines.slow.slow_findings import (
    SlowSuspects,
    TransferTime,
    ValidationPlan,
    ValidationResults,
    ValidationVerdict,
)
from holdfast.engines.slow.validation import judge_validation, plan_validation
from holdfast.events import CollectivesProfiled, SlownessTested
from holdfast.events.parts.samples import GroupPace, RankPace, SlowCause
from holdfast.orders.slow import SlowTests
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.topology import Mesh, MeshError, Topology

GROUPS_SHOWN = 32
SHARE_MIN = 0.02
"""Smallest share of an iteration that a kind of collective must take: a smaller one makes no job slow."""
EVIDENCE_MAX = 16


Passes = tuple[tuple[tuple[int, int], ...], ...]
"""Links by node rank, sender and receiver; those of one pass share no node."""


class Profiles:
    """The joined profiles of a job's nodes, by node rank."""

    def __init__(self, reported: Mapping[int, CollectivesProfiled]) -> None:
        """Join the profiles of at least one node; raise MeshError if the job's mesh is not that of its ranks."""
        self.reported = reported
        one = next(iter(reported.values()))
        mesh = Mesh.parse(one.mesh) if one.mesh else None
        self.nnodes = one.nnodes
        self.topology = Topology.of(one.nnodes, one.nproc_per_node, mesh)
        self.ranks = [rank for event in reported.values() for rank in event.ranks]
        per_iteration = {
            (calls.group, calls.operation, calls.bytes): calls.count / len(rank.iterations_s)
            for rank in self.ranks
            for calls in rank.calls
            if rank.iterations_s
        }
        self.all_groups = group_times(self.ranks, mesh)
        self.works = works(self.ranks)
        self.step = max((rank.step for rank in self.ranks), default=-1)
        paces = [statistics.median(rank.iterations_s) for rank in self.ranks if rank.iterations_s]
        self.pace_s = statistics.median(paces) if paces else 0.0
        self.groups = [
            group
            for group in self.all_groups
            if group.transfer_s * per_iteration.get((group.group, group.operation, group.bytes), 0.0)
            >= SHARE_MIN * self.pace_s
        ]
        self.machines = shared_machines({rank: event.boot_id for rank, event in reported.items()})
        healthy = [rank.healthy_s for rank in self.ranks if rank.healthy_s]
        self.healthy_s = statistics.median(healthy) if healthy else 0.0

    def locate(self) -> SlowSuspects:
        """Return the suspects. Where no wire is, a group that takes long waits for processors."""
        located = find_slow_suspects(self.groups, self.works, self.topology)
        suspicions = tuple(
            msgspec.structs.replace(it, cause="computation") if self._is_within_a_machine(it.ranks) else it
            for it in located.suspicions
        )
        return msgspec.structs.replace(located, suspicions=suspicions)

    def is_wire(self, sender: int, receiver: int) -> bool:
        """Return False if what two nodes send each other stays in one machine's memory."""
        if self.machines.get(sender, sender) != self.machines.get(receiver, receiver):
            return True
        ends = [self.reported[node].endpoint for node in (sender, receiver) if node in self.reported]
        return len(ends) < 2 or ends[0] is None or ends[1] is None or ends[0].address != ends[1].address

    def _is_within_a_machine(self, ranks: Sequence[int]) -> bool:
        first, *others = sorted({self.topology.node_rank_of(rank) for rank in ranks})
        return bool(others) and not any(self.is_wire(first, other) for other in others)

    def node(self, node_rank: int) -> str:
        event = self.reported.get(node_rank)
        return (event.node or "") if event is not None else ""

    def shown(self) -> dict[str, Any]:
        slowest = sorted(self.all_groups, key=lambda group: -group.transfer_s * group.occurrences)[:GROUPS_SHOWN]
        return {
            "pace": tuple(
                RankPace(
                    rank=rank.rank,
                    node=self.node(self.topology.node_rank_of(rank.rank)),
                    iteration_s=statistics.median(rank.iterations_s),
                    work_s=statistics.median(rank.iterations_s) - statistics.median(rank.in_calls_s),
                    in_calls_s=statistics.median(rank.in_calls_s),
                )
                for rank in sorted(self.ranks, key=lambda rank: rank.rank)
                if rank.iterations_s
            ),
            "groups": tuple(
                GroupPace(
                    group=group.group,
                    kind=group.kind,
                    operation=group.operation,
                    bytes=group.bytes,
                    ranks=len(group.ranks),
                    transfer_s=group.transfer_s,
                    waiting_s=max(group.waiting_s, default=0.0),
                )
                for group in slowest
            ),
        }


def shared_machines(boot_ids: Mapping[int, str]) -> dict[int, str]:
    """Return the machine of each node rank that shares it with others of the job."""
    nodes = Counter(filter(None, boot_ids.values()))
    return {node: boot_id for node, boot_id in boot_ids.items() if nodes[boot_id] > 1}


def profiles_of(reported: Mapping[int, CollectivesProfiled]) -> Profiles | None:
    """Join profiles; None if there are none, or the mesh does not fit."""
    if not reported:
        return None
    try:
        return Profiles(reported)
    except MeshError:
        return None


def hold_of(
    profiles: Profiles, located: SlowSuspects, policy: SlowPolicy, lead_s: float, now: datetime
) -> tuple[SlowTests, Passes] | None:
    """Return the hold with its matrix products, and the later transfers; None: nothing to test, or step unknown.

    The order has `lead_s` to reach all nodes.
    """
    if profiles.step < 0:
        return None
    plan = plan_validation(located, profiles.topology)
    passes = _between_nodes(plan, profiles)
    if not plan.compute_ranks and not passes:
        return None
    # Far enough ahead that the order is at every node before its ranks reach that step. The present step may end at
    # any moment: only those after it count.
    ahead = 1 + (math.ceil(lead_s / profiles.pace_s) if profiles.pace_s else 0)
    # The end of a step may be far. A rank that is held earlier does not wait for this.
    held_by = now + timedelta(seconds=lead_s + (ahead + 2) * profiles.pace_s + policy.answer_s)
    compute_s = policy.compute_s if plan.compute_ranks else 0.0
    hold = SlowTests(
        after_step=profiles.step + ahead,
        held_by=held_by,
        until=held_by + timedelta(seconds=compute_s + policy.answer_s),
        compute_ranks=plan.compute_ranks,
        compute_s=compute_s,
    )
    return hold, passes


def transfers_of(profiles: Profiles, hold: SlowTests, passes: Passes, policy: SlowPolicy, now: datetime) -> SlowTests:
    """Return the tests of transfers, for when all ranks are held: each link twice, some time apart."""
    passes = (*passes, *passes)
    passes_at = now + timedelta(seconds=policy.ahead_s)
    return SlowTests(
        after_step=hold.after_step,
        held_by=now,
        until=passes_at + timedelta(seconds=len(passes) * policy.pass_s + policy.answer_s),
        passes=passes,
        passes_at=passes_at,
        pass_s=policy.pass_s,
        endpoints={rank: event.endpoint for rank, event in profiles.reported.items() if event.endpoint is not None},
        transfer_bytes=policy.transfer_bytes,
    )


def _between_nodes(plan: ValidationPlan, profiles: Profiles) -> Passes:
    """Return the passes by nodes: transfers within a node use no network, and many ranks share a link."""
    node_of = profiles.topology.node_rank_of
    seen: set[tuple[int, int]] = set()
    passes: list[list[tuple[int, int]]] = []
    for together in plan.passes:
        begun: list[list[tuple[int, int]]] = []
        for transfer in together:
            link = node_of(transfer.sender), node_of(transfer.receiver)
            if link[0] == link[1] or link in seen or not profiles.is_wire(*link):
                continue
            seen.add(link)
            # Links that meet at a node would slow each other down: they go to separate passes.
            fitting = (links for links in begun if not {end for one in links for end in one} & set(link))
            if (place := next(fitting, None)) is None:
                begun.append(place := [])
            place.append(link)
        passes += begun
    return tuple(tuple(links) for links in passes)


class SlowJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion of an analysis, by node rank. `is_validated`: by tests."""

    cause: SlowCause
    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    suspects: tuple[int, ...] = ()
    is_validated: bool = False
    summary: str
    evidence: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()


def by_collectives(profiles: Profiles, located: SlowSuspects) -> SlowJudgement:
    """Judge by the collectives alone, which only suspect."""
    worst = max(located.suspicions, key=lambda found: found.ratio, default=None)
    everyone = len(located.suspicions) > 0 and all(found.ratio == 1.0 for found in located.suspicions)
    harmless = tuple(found.reason for found in located.harmless)
    if worst is None or everyone:
        cause: SlowCause = located.harmless[0].cause if located.harmless else "unknown"
        return SlowJudgement(cause=cause, summary=located.reason, harmless=harmless)
    ranks = located.ranks("computation") if worst.cause == "computation" else worst.ranks
    suspects = tuple(sorted({profiles.topology.node_rank_of(rank) for rank in ranks}))
    return SlowJudgement(
        cause=worst.cause,
        ranks=ranks,
        suspects=suspects,
        summary=located.reason,
        evidence=tuple(found.reason for found in located.suspicions)[:EVIDENCE_MAX],
        harmless=harmless,
    )


def by_tests(
    profiles: Profiles, located: SlowSuspects, tested: Sequence[SlownessTested], policy: SlowPolicy
) -> SlowJudgement:
    """Judge by the tests; by the collectives if suspects could not be tested, and no other machine or link is slow."""
    suspected = by_collectives(profiles, located)
    first = profiles.topology.ranks_of
    results = ValidationResults(
        compute_s={
            **{rank: (took_s,) for event in tested for rank, took_s in event.compute_s},
            **{rank: turns_s for event in tested for rank, turns_s in event.compute_turns_s},
        },
        compute_waited_s={rank: waited_s for event in tested for rank, waited_s in event.compute_waited_s},
        on_shared_machines=frozenset(rank for node in profiles.machines for rank in first(node)),
        transfers=tuple(
            TransferTime(sender=first(sender).start, receiver=first(receiver).start, seconds=took_s)
            for event in tested
            for sender, receiver, took_s in event.transfers
        ),
    )
    unread = tuple(f"{event.node}: {line}" for event in tested for line in event.unread)
    if not results.compute_s and not results.transfers:
        return msgspec.structs.replace(suspected, evidence=(*suspected.evidence, *unread)[:EVIDENCE_MAX])
    verdict: ValidationVerdict = judge_validation(
        results, profiles.topology, policy.compute_slower_by, policy.links_slower_by
    )
    evidence = (*verdict.evidence, *suspected.evidence, *unread)[:EVIDENCE_MAX]
    is_found = bool(verdict.slow_ranks or verdict.slow_links)
    if not is_found and (untested := _untested(profiles, located, results)):
        # A machine may be too slow to take part in time: that its peers are well clears only them.
        summary = f"{suspected.summary}; not tested: {untested}"
        return msgspec.structs.replace(suspected, summary=summary, evidence=evidence)
    if not is_found:
        # The slowness has passed by itself meanwhile.
        return SlowJudgement(
            cause="unknown",
            suspects=suspected.suspects,
            is_validated=True,
            summary=f"{verdict.reason}; before the tests: {located.reason}",
            evidence=evidence,
            harmless=suspected.harmless,
        )
    return SlowJudgement(
        cause="computation" if verdict.slow_ranks else "communication",
        nodes=verdict.nodes,
        ranks=verdict.slow_ranks,
        links=tuple((link.sender, link.receiver) for link in verdict.slow_links),
        suspects=suspected.suspects,
        is_validated=True,
        summary=verdict.reason,
        evidence=evidence,
        harmless=suspected.harmless,
    )


def _untested(profiles: Profiles, located: SlowSuspects, results: ValidationResults) -> str:
    """Return the suspects without a result, in words; "": all have one."""
    ranks = [str(rank) for rank in located.ranks("computation") if rank not in results.compute_s]
    node_of = profiles.topology.node_rank_of
    measured = {(node_of(it.sender), node_of(it.receiver)) for it in results.transfers}
    wanted = {link for links in _between_nodes(plan_validation(located, profiles.topology), profiles) for link in links}
    found = [f"rank {', '.join(ranks)}"] if ranks else []
    if missing := len(wanted - measured):
        found.append(f"{missing} of {len(wanted)} links")
    return ", ".join(found)
