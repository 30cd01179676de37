"""What must hold in every simulated history, checked from outside the code that made it."""

from __future__ import annotations

from collections import Counter

from holdfast.events import (
    BadNumber,
    ChecksEnded,
    ChecksStarted,
    Decision,
    DiagnosticResult,
    Eviction,
    EvictionRevoked,
    GenerationStarted,
    IncidentClosed,
    IncidentOpened,
    JobFinished,
    MessageRejected,
    NodeDeparted,
    NodeLost,
    NodesGranted,
    NodesRequested,
    ProcessExited,
    SuspectsTested,
    decode,
)
from holdfast.exit_codes import SUPERSEDED
from tests.sim.cluster import SimCluster
from tests.sim.nodes import SERVICE_MISSED


def check(cluster: SimCluster) -> None:
    """Raise on the first thing that must not be."""
    generations_only_grow(cluster)
    incidents_end_once(cluster)
    decisions_have_reasons(cluster)
    ids_are_unique(cluster)
    restarts_answer_the_present(cluster)
    leftovers_decide_nothing(cluster)
    services_elsewhere_blame_nobody(cluster)
    nothing_spoiled_comes_back(cluster)
    checks_blame_who_failed_them(cluster)
    checks_are_followed_up(cluster)
    who_comes_back_is_well(cluster)
    each_job_ends_once(cluster)
    nothing_is_rejected(cluster)
    claims_are_answered_in_order(cluster)
    sizes_stay_within_bounds(cluster)
    nothing_is_held_in_the_end(cluster)


def generations_only_grow(cluster: SimCluster) -> None:
    for spec in cluster.specs:
        started = [
            event.generation or 0
            for event in cluster.log
            if isinstance(event, GenerationStarted) and event.job == spec.name
        ]
        assert started == sorted(set(started)), f"generations of {spec.name} went back or came twice: {started}"


def restarts_answer_the_present(cluster: SimCluster) -> None:
    """A rank's end restarts the job only if it is of the generation that should run."""
    by_id = {event.id: event for event in cluster.log}
    newest: dict[str | None, int | None] = {}
    for event in cluster.log:
        if isinstance(event, GenerationStarted):
            cause = by_id.get(event.cause or "")
            if isinstance(cause, ProcessExited):
                assert cause.generation == newest[event.job], f"{event.job} restarted for what was long over"
        if isinstance(event, GenerationStarted | ChecksStarted):
            newest[event.job] = event.generation


def services_elsewhere_blame_nobody(cluster: SimCluster) -> None:
    """Who missed a service in training is waited with, not evicted. In checks such an end is one like any other."""
    missed = {
        event.id
        for event in cluster.log
        if isinstance(event, ProcessExited) and event.log_tail == SERVICE_MISSED and event.purpose == "train"
    }
    for event in cluster.log:
        assert not isinstance(event, Eviction) or event.cause not in missed, f"{event.node} was evicted: {event.reason}"


def nothing_spoiled_comes_back(cluster: SimCluster) -> None:
    """After bad numbers no generation goes on from above the certified step, until one has trained past that."""
    found = [(at, finding) for body, at in cluster.judged.items() if isinstance(finding := decode(body), BadNumber)]
    for spec in cluster.specs:
        training = cluster.trainings[spec.name]
        limit, before = None, None
        for start in (event for event in cluster.log if isinstance(event, GenerationStarted)):
            if start.job != spec.name:
                continue
            for at, finding in found:
                is_of_last = before is not None and (finding.job, finding.generation) == (spec.name, before.generation)
                if is_of_last and at <= start.at:
                    assert finding.certified is not None
                    limit = finding.certified if limit is None else min(limit, finding.certified)
            began = training.began_with.get(start.generation or 0, -1)
            assert limit is None or began <= limit, f"{spec.name}: {start.generation} began at {began}, above {limit}"
            if limit is not None and training.reached.get(start.generation or 0, -1) > limit:
                limit = None
            before = start


def leftovers_decide_nothing(cluster: SimCluster) -> None:
    """That a rank was replaced by a newer generation is no failure: nothing follows."""
    leftovers = {
        event.id for event in cluster.log if isinstance(event, ProcessExited) and event.exit_code == SUPERSEDED
    }
    followed = [event.type for event in cluster.log if event.cause in leftovers]
    assert not followed, f"followed from a rank that was replaced: {followed}"


def checks_blame_who_failed_them(cluster: SimCluster) -> None:
    """A suspect of stop-time checks has failed one in that run, or has not come to their end."""
    for ended in (event for event in cluster.log if isinstance(event, ChecksEnded)):
        said = [
            event
            for event in cluster.log
            if isinstance(event, DiagnosticResult) and (event.job, event.generation) == (ended.job, ended.generation)
        ]
        for suspect in ended.suspects:
            failed = any(event.node == suspect.node and event.status == "failed" for event in said)
            silent = any(word in suspect.reason for word in ("did not answer", "check process"))
            assert failed or silent, f"{suspect.node} was named: {ended.reason}"


def checks_are_followed_up(cluster: SimCluster) -> None:
    """A job whose nodes were checked trains again, or ends: it does not stay where it is."""
    for index, started in enumerate(cluster.log):
        if isinstance(started, ChecksStarted):
            after = [event for event in cluster.log[index:] if event.job == started.job]
            assert any(isinstance(event, GenerationStarted | JobFinished) for event in after)


def incidents_end_once(cluster: SimCluster) -> None:
    opened = Counter(event.incident for event in cluster.log if isinstance(event, IncidentOpened))
    closed = Counter(event.incident for event in cluster.log if isinstance(event, IncidentClosed))
    assert all(count == 1 for count in opened.values()), f"opened twice: {opened}"
    assert opened == closed, f"opened {opened}, closed {closed}"


def decisions_have_reasons(cluster: SimCluster) -> None:
    recorded = {event.id for event in cluster.log} | cluster.requests
    size: dict[str | None, int] = {}
    growing: set[str | None] = set()
    for event in cluster.log:
        if isinstance(event, NodesRequested) and event.leaves_reserve:
            growing.add(event.job)
        if isinstance(event, Decision):
            assert event.reason, f"{event.type} without a reason"
            assert event.cause in recorded, f"the cause of {event.type} is not in the record: {event.cause}"
        if isinstance(event, GenerationStarted | Eviction) and (event.generation or 0) > 1:
            # An elastic job also starts again for nodes that came free: with more than before.
            grows = isinstance(event, GenerationStarted) and event.job in growing
            grows = grows and len(event.nodes) > size[event.job]
            assert event.incident or grows, f"{event.type} of generation {event.generation} outside any incident"
        if isinstance(event, GenerationStarted):
            size[event.job] = len(event.nodes)
            growing.discard(event.job)


def ids_are_unique(cluster: SimCluster) -> None:
    twice = [id for id, count in Counter(event.id for event in cluster.log).items() if count > 1]
    assert not twice, f"ids used twice: {twice}"


def who_comes_back_is_well(cluster: SimCluster) -> None:
    """Of nodes that were evicted those come back that have passed their tests; of slow ones those that are as fast as a
    witness.

    A witness may be slow itself: then a suspect that is no slower comes back, though another one is faster.
    """
    for tested in (event for event in cluster.log if isinstance(event, SuspectsTested)):
        said = [event for event in cluster.log if isinstance(event, DiagnosticResult) and event.job == tested.run]
        named = {*tested.cleared, *tested.in_doubt, *(suspect.node for suspect in tested.at_fault)}
        for node in tested.cleared:
            own = [event for event in said if event.node == node]
            assert {event.status for event in own} == {"passed"}, f"{node} came back from {tested.run}"
            rates = {event.node: event.value for event in said if event.test == "speed"}
            enough = min(rates[witness] for witness in rates.keys() - named) if rates.keys() - named else 0.0
            assert rates.get(node, 0.0) >= enough, f"{node} is slow and came back: {tested.reason}"
        assert named, f"{tested.run} says nothing of anybody"
        revoked = {event.node for event in cluster.log if isinstance(event, EvictionRevoked) and event.at == tested.at}
        gone = {it.node for it in cluster.log if isinstance(it, NodeLost | NodeDeparted) and it.job == tested.run}
        assert revoked >= set(tested.cleared) - gone, f"not all that {tested.run} cleared are off the blocklist"


def each_job_ends_once(cluster: SimCluster) -> None:
    ended = Counter(event.job for event in cluster.log if isinstance(event, JobFinished))
    assert ended == dict.fromkeys(cluster.begun, 1), f"jobs ended: {ended}"


def nothing_is_rejected(cluster: SimCluster) -> None:
    rejected = [event.error for event in cluster.log if isinstance(event, MessageRejected)]
    assert not rejected, f"a sound message was rejected: {rejected}"


def claims_are_answered_in_order(cluster: SimCluster) -> None:
    """No claim is granted twice, or after a newer one of the same job."""
    for spec in cluster.specs:
        asked = [event.id for event in cluster.log if isinstance(event, NodesRequested) and event.job == spec.name]
        granted = [
            asked.index(event.claim)
            for event in cluster.log
            if isinstance(event, NodesGranted) and event.job == spec.name
        ]
        assert granted == sorted(set(granted)), f"claims of {spec.name} were granted in the order {granted}"


def sizes_stay_within_bounds(cluster: SimCluster) -> None:
    """A job runs on as many nodes as it asked for, an elastic one on no fewer and no more than it may have."""
    for spec in cluster.specs:
        for start in (it for it in cluster.log if isinstance(it, GenerationStarted) and it.job == spec.name):
            fewest = spec.nnodes_min if spec.is_elastic else spec.nnodes
            assert fewest <= len(start.nodes) <= spec.nnodes, f"{spec.name} started on {start.nodes}"
            assert start.world_size == len(start.nodes) * spec.nproc_per_node


def nothing_is_held_in_the_end(cluster: SimCluster) -> None:
    """Jobs that are over have no node, and claim none."""
    held = {node.id: node.job for node in cluster.inventory.nodes.values() if node.job is not None}
    assert not held, f"held by jobs that are over: {held}"
    waiting = [claim.job for claim in cluster.inventory.claims.values() if claim.over_at is None]
    assert not waiting, f"claims of jobs that are over: {waiting}"
