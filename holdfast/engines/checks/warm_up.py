"""The warm-up of a job's nodes: what is tested on each, and the verdict on all. Pure.

A node is unfit only in comparison with others: a path that no node of the job has is the job's mistake or a fault of
what the nodes share, and so is whatever most of them fail. What did not answer is not counted among either: silence
shows neither a fault nor fitness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.engines.checks.checks_verdict import SuspectNode, UnresolvedNodes, judge_checks
from holdfast.engines.checks.folding import unfolded
from holdfast.engines.checks.pairs import Pair
from holdfast.engines.checks.suites import MEETING
from holdfast.events import DiagnosticResult
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.ranks import FoldedResult
from holdfast.events.parts.scalars import Count, Name
from holdfast.symptoms import Symptom

PATHS, DEVICES, SOCKETS = "paths", "devices", "sockets"
COMPARED_MIN = 3
"""Minimum number of nodes of which most have a path on the same file system, and one has not."""

PathUse = Literal["works", "writes", "data"]
"""Use of a path by a job: its working directory, the place of its checkpoints, or data that it reads."""


class JobPath(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    use: PathUse


class WarmUpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The warm-up of one node, for the process that carries it out."""

    run: str
    node: str
    node_rank: int
    nodes: int
    devices: int
    """Number of devices to test; 0: none."""
    address: str
    """Address at which other nodes reach this one."""
    store_host: str
    store_port: int
    paths: tuple[JobPath, ...]
    limit_s: float


class WarmUpResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a warm-up, as its process reports it: fields of DiagnosticResult."""

    test: str
    status: Literal["passed", "failed", "broken", "skipped"]
    symptom: str = ""
    peers: tuple[Name, ...] = ()
    device: str = ""
    value: float | None = None
    unit: str = ""
    digest: str = ""
    hardware: str = ""
    program: str = ""
    boot_id: str = ""
    took_s: float = 0.0
    detail: str = ""
    results: Count = 0
    folded: tuple[FoldedResult, ...] = ()


class SharedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that is held against no node, since all or most of them have it."""

    thing: str
    symptom: str
    nodes: tuple[str, ...]
    reason: str


class WarmUpVerdict(msgspec.Struct, frozen=True, kw_only=True):
    suspects: tuple[SuspectNode, ...] = ()
    shared: tuple[SharedFinding, ...] = ()
    remarks: tuple[str, ...] = ()
    """Failures that name no node."""


def paths_of(spec: JobSpec) -> tuple[JobPath, ...]:
    """Return the paths that a job needs on every node. What lies in a store elsewhere is on none of their disks."""
    paths = [JobPath(path=spec.cwd, use="works"), JobPath(path=spec.directory, use="writes")]
    paths += [JobPath(path=path, use="data") for path in spec.data]
    return tuple(one for one in paths if one.path and "://" not in one.path)


def judge_warm_up(
    nodes: Sequence[str],
    results: Iterable[DiagnosticResult],
    newcomers: Collection[str] = (),
    broken_before: Sequence[Pair] = (),
) -> WarmUpVerdict:
    """Judge the results of the nodes of one start, given in the order of their node ranks. `newcomers`: those that did
    not train with the others before. `broken_before`: connections that failed in the same incident."""
    known = [result for result in unfolded(results) if result.node in set(nodes)]
    answered = [node for node in nodes if any(result.node == node for result in known)]
    # The store is on the first node: if that has not answered, it may only be late.
    is_store_late = bool(nodes) and nodes[0] not in answered
    known = [it for it in known if not (is_store_late and it.test == MEETING and it.status == "failed")]
    known, shared = _compared_paths(known, answered)
    verdict = judge_checks(nodes, known)
    if verdict.capped:
        in_doubt = [entry for entry in verdict.unresolved if len(entry.nodes) == 1]
        what = "; ".join(dict.fromkeys(f"{entry.nodes[0]}: {entry.reason}" for entry in in_doubt))
        failing = tuple(entry.nodes[0] for entry in in_doubt)
        symptom = in_doubt[0].symptom if in_doubt else Symptom.UNKNOWN
        found = SharedFinding(
            thing="what most nodes share", symptom=symptom, nodes=failing, reason=f"{verdict.capped}: {what}"
        )
        return WarmUpVerdict(shared=(*shared, found))
    named = {suspect.node for suspect in verdict.suspects}
    of_links, remarks = [], list(verdict.remarks)
    for entry in verdict.unresolved:
        is_link = len(entry.nodes) == 2 and tuple(entry.nodes) in verdict.links
        found_end = _end_at_fault(entry, known, nodes, newcomers, broken_before) if is_link else None
        if found_end is None:
            remarks.append(entry.reason)
        elif found_end.node not in named:
            named.add(found_end.node)
            of_links.append(found_end)
    return WarmUpVerdict(suspects=(*verdict.suspects, *of_links), shared=tuple(shared), remarks=tuple(remarks))


def _compared_paths(
    known: list[DiagnosticResult], answered: Sequence[str]
) -> tuple[list[DiagnosticResult], list[SharedFinding]]:
    """Return the results in which a path counts against a node only by comparison, and the paths that none has."""
    compared = [result for result in known if result.test != PATHS]
    shared = []
    by_path: dict[str, list[DiagnosticResult]] = {}
    for result in known:
        if result.test == PATHS:
            by_path.setdefault(result.device, []).append(result)
    for path, found in by_path.items():
        present = [result for result in found if result.status == "passed"]
        missing = [result for result in found if result.status == "failed"]
        if missing and not present:
            nodes = tuple(node for node in answered if any(result.node == node for result in missing))
            who = "no node of the job has it" if len(answered) > 1 else "no other node of the job can be compared"
            reason = f"{missing[0].detail}; {who}"
            shared.append(SharedFinding(thing=path, symptom=missing[0].symptom, nodes=nodes, reason=reason))
            continue
        places = Counter(result.digest for result in present if result.digest)
        ((usual, count),) = places.most_common(1) or [("", 0)]
        is_majority = len(found) >= COMPARED_MIN and 2 * count > len(found)
        for result in (*present, *missing):
            if is_majority and result.status == "passed" and result.digest not in ("", usual):
                detail = f"{path} is {result.digest} here, and {usual} on {count} other nodes"
                result = msgspec.structs.replace(
                    result, status="failed", symptom=str(Symptom.FILESYSTEM_MOUNT), detail=detail
                )
            compared.append(msgspec.structs.replace(result, digest=""))
    return compared, shared


def _end_at_fault(
    entry: UnresolvedNodes,
    known: Iterable[DiagnosticResult],
    nodes: Sequence[str],
    newcomers: Collection[str],
    broken_before: Sequence[Pair],
) -> SuspectNode | None:
    """Return the end of a broken connection that is at fault; None if no result tells the ends apart.

    It is the one that reaches no node, or reached another one as little before. Else the guess is the one that joined
    last, or the last of two nodes: without one of them the connection is not used. If it was the other one, the next
    node meets it again.
    """
    link = (entry.nodes[0], entry.nodes[1])
    reached = {
        node
        for result in known
        if result.test == SOCKETS and result.status == "passed" and result.peers
        for node in (result.node, *result.peers)
        if set(link) != {result.node, *result.peers}
    }
    failed_with = {end: {node for pair in broken_before if end in pair for node in pair} - set(link) for end in link}
    reason = entry.reason
    shown = [end for end in link if end not in reached]
    if len(shown) != 1:
        shown = [end for end in link if failed_with[end]]
        if len(shown) == 1:
            others = ", ".join(sorted(failed_with[shown[0]]))
            reason = (
                f"{link[0]} and {link[1]} cannot reach each other, and neither could {shown[0]} and {others} before"
            )
    guessed = [end for end in link if end in newcomers]
    if len(guessed) != 1:
        guessed = [nodes[-1]] if len(nodes) == len(link) else []
    named = shown if len(shown) == 1 else guessed
    if not named:
        return None
    return SuspectNode(
        node=named[0],
        symptom=entry.symptom,
        confidence="medium",
        reason=reason,
        evidence=entry.evidence,
        link=link,
        is_guess=named is guessed,
    )
