"""Marks in the records of nodes: failures, checks, evictions, and findings that one of them was not the node's fault.

Silence and explained failures are noted and never count. Errors of the script and of services elsewhere are not noted:
they are not a node's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from holdfast.engines.record.chance import elsewhere, log_odds
from holdfast.engines.record.history import (
    AGAINST,
    BY_RANKS,
    COMPARED,
    JUDGED,
    TEXT_MAX,
    Mark,
    MarkKind,
    NodeRecord,
)
from holdfast.events.parts.ranks import Suspect
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.rank_exits import EXITS_MAX, of_generation
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE
from holdfast_controller.plan.incident.incident import Cause, Failure

OF_HARDWARE = frozenset(
    {
        Symptom.ECC_ERROR,
        Symptom.GPU_LOST,
        Symptom.NVLINK_ERROR,
        Symptom.DISK_FAULT,
        Symptom.DRIVER_VERSION_MISMATCH,
    }
)
"""Names of failures that point to the machine wherever the job runs."""

USED_UP = frozenset({Symptom.CPU_OOM, Symptom.PROCESS_LIMIT})
"""Names of failures whose cause is a resource that the job uses up; it would do so on any machine."""

HANGS = (MarkKind.HANG, MarkKind.IN_GROUP)

STRENGTH = (
    MarkKind.EXPLAINED,
    MarkKind.KILLED,
    MarkKind.CRASH,
    MarkKind.HANG,
    MarkKind.HARDWARE,
    MarkKind.WITNESSED,
)
"""Kinds of failures, the weakest evidence first; a stronger one replaces it in the same generation."""


def record_of(draft: JobDraft, node: str) -> NodeRecord:
    return draft.records.get(node) or NodeRecord(node=node)


def note(draft: JobDraft, node: str, kind: MarkKind, text: str = "", **fields: object) -> None:
    """Add a mark to a node's record."""
    incident = draft.state.incident
    member = draft.state.member(node)
    mark = Mark(
        at=draft.now,
        kind=kind,
        text=text[:TEXT_MAX],
        **{  # type: ignore[arg-type]
            "job": draft.state.job,
            "generation": draft.state.generation,
            "incident": incident.id if incident else "",
            "nodes": draft.state.spec.nnodes,
            "rack": member.rack if member else "",
            "rack_nodes": draft.state.nodes_in(member.rack) if member and member.rack else 0,
            **fields,
        },
    )
    _keep(draft, record_of(draft, node).with_mark(mark))


def note_failure(draft: JobDraft, failure: Failure) -> None:
    """Note a failure of a node, once for each generation; stronger evidence about the generation replaces it."""
    kind = _kind_of(failure)
    if kind is MarkKind.HARDWARE and is_distrusted(draft):
        kind = MarkKind.EXPLAINED
    if kind is None or failure.node is None or is_one_of_many(draft, failure):
        return
    record = record_of(draft, failure.node)
    known = record.mark_of(draft.state.job, failure.generation)
    fields = {
        "symptom": failure.symptom_name,
        "generation": failure.generation,
        "rank": failure.rank,
        "event": failure.evidence[-1] if failure.evidence else "",
        "device": _device(draft, failure),
    }
    if known is None:
        note(draft, failure.node, kind, failure.text, **fields)
    elif kind in STRENGTH and known.kind in STRENGTH and STRENGTH.index(kind) > STRENGTH.index(known.kind):
        struck = known.struck if kind in COMPARED else ""
        better = msgspec.structs.replace(known, kind=kind, text=failure.text[:TEXT_MAX], struck=struck, **fields)
        _keep(draft, record.replacing(known, better))
    _compare_within_generation(draft, failure, kind)


def note_group(draft: JobDraft, failure: Failure, nodes: Iterable[str]) -> None:
    """Note the nodes of which one may have held up the job, once for each generation."""
    for node in nodes:
        known = (mark for mark in record_of(draft, node).marks if mark.kind is MarkKind.IN_GROUP)
        if not any((mark.job, mark.generation) == (draft.state.job, failure.generation) for mark in known):
            event = failure.evidence[-1] if failure.evidence else ""
            fields = {"generation": failure.generation, "symptom": failure.symptom_name, "event": event}
            note(draft, node, MarkKind.IN_GROUP, failure.text, **fields)


def has_hung(draft: JobDraft, node: str, generation: int) -> bool:
    """Return True if an earlier hang of the job has lately named this node, and no other node left for that one."""
    since = draft.now - timedelta(days=draft.rules.record.half_life_days)
    earlier = [
        mark
        for mark in record_of(draft, node).marks
        if mark.kind in HANGS and mark.at > since and mark.job == draft.state.job and mark.generation < generation
    ]
    return any(not mark.struck and not _is_settled(draft, node, mark) for mark in earlier)


def _is_settled(draft: JobDraft, node: str, hang: Mark) -> bool:
    """Return True if a node that the same hang named was evicted since, and not cleared; or this one was cleared."""
    for record in draft.records.of_jobs((hang.job,)):
        is_named = any(it.kind in HANGS and it.generation == hang.generation for it in record.marks)
        judged = [mark.kind for mark in record.marks if mark.kind in JUDGED and mark.at >= hang.at]
        if is_named and judged and (judged[-1] is not MarkKind.CLEARED or record.node == node):
            return True
    return False


def note_cause(draft: JobDraft, cause: Cause) -> None:
    """Note that a failure which counts against its node has a cause that is not the machine, as was found out later."""
    if cause.node is None or cause.symptom not in USED_UP:
        return
    record = record_of(draft, cause.node)
    known = record.mark_of(draft.state.job, cause.generation)
    if known is not None and known.kind in COMPARED:
        text = cause.reason[:TEXT_MAX]
        explained = msgspec.structs.replace(known, kind=MarkKind.EXPLAINED, symptom=str(cause.symptom), text=text)
        _keep(draft, record.replacing(known, explained))


def note_cleared(draft: JobDraft, node: str, why: str, **fields: object) -> None:
    """Note that an eviction of a node proved wrong, once: several things may show it."""
    judged = (MarkKind.EVICTED, MarkKind.CONFIRMED, MarkKind.CLEARED)
    last = next((mark.kind for mark in reversed(record_of(draft, node).marks) if mark.kind in judged), None)
    if last is MarkKind.EVICTED:
        note(draft, node, MarkKind.CLEARED, why, **fields)


def note_checks(draft: JobDraft, passed: Iterable[str], failed: Iterable[Suspect]) -> None:
    """Note results of checks; that a node passed is noted only if it had failed before."""
    for suspect in failed:
        note(draft, suspect.node, MarkKind.CHECKS_FAILED, suspect.reason, symptom=suspect.symptom)
    for node in passed:
        if any(mark.kind in AGAINST for mark in record_of(draft, node).marks):
            note(draft, node, MarkKind.CHECKS_PASSED, "stop-time checks found nothing wrong with it")


def strike_incident(draft: JobDraft, nodes: Iterable[str], why: str) -> None:
    """Strike what ranks did in the open incident and counted against these nodes: something else explains it."""
    incident = draft.incident.id
    for node in nodes:
        strike(draft, node, lambda mark: mark.kind in BY_RANKS and mark.incident == incident, why)


def strike_alerts(draft: JobDraft, node: str, alerts: Iterable[str], why: str) -> None:
    """Strike the marks of these alerts, which are given by their events."""
    events = frozenset(alerts)
    strike(draft, node, lambda mark: mark.event in events, why)


def strike(draft: JobDraft, node: str, concerns: Callable[[Mark], bool], why: str) -> None:
    """Strike the marks of a node that are described by `concerns`: they do not count any more."""
    record = record_of(draft, node)
    marks = tuple(_struck(mark, why) if mark.counts and concerns(mark) else mark for mark in record.marks)
    if marks != record.marks:
        _keep(draft, msgspec.structs.replace(record, marks=marks))


def _struck(mark: Mark, why: str) -> Mark:
    return msgspec.structs.replace(mark, struck=why[:TEXT_MAX])


def is_distrusted(draft: JobDraft) -> bool:
    """Return True if the job prints that its hardware is broken wherever it runs."""
    since = draft.state.distrusted_since
    return since is not None and draft.now - since < timedelta(days=draft.rules.record.half_life_days)


def is_one_of_many(draft: JobDraft, failure: Failure) -> bool:
    """Return True for the end of a rank that is not kept, since very many ended in that generation.

    One of them counts, and comparing each with all others would take the square of their number.
    """
    ends = of_generation(draft.state.exits, failure.generation)
    is_of_rank = failure.error is not None and failure.symptom is not Symptom.HANG
    return is_of_rank and len(ends) >= EXITS_MAX and not any(one.event in failure.evidence for one in ends)


def _kind_of(failure: Failure) -> MarkKind | None:
    """Return what kind of mark a failure is; None if it is not held against a node, or belongs to none."""
    symptom = failure.symptom
    if symptom in (Symptom.NODE_LOST, Symptom.NODE_DEPARTED, Symptom.START_TIMEOUT):
        return MarkKind.LOST
    if symptom is Symptom.NODE_UNFIT:
        return None if failure.lacks_path else MarkKind.ALERT
    if symptom is Symptom.FAIL_SLOW:
        return MarkKind.SLOW if len(failure.group) == 1 else None
    if failure.is_of_own_link:
        return MarkKind.CRASH
    if symptom not in FIRST_HAND_OF_NODE or failure.may_be_outage:
        return None
    if failure.named in USED_UP or failure.is_shared:
        return MarkKind.EXPLAINED
    if failure.is_witnessed:
        return MarkKind.WITNESSED
    if failure.named in OF_HARDWARE or failure.proof:
        return MarkKind.HARDWARE
    if symptom is Symptom.HANG:
        return MarkKind.HANG
    was_killed = failure.error is not None and failure.error.is_kill
    return MarkKind.KILLED if was_killed or symptom is Symptom.RANKS_VANISHED else MarkKind.CRASH


def _compare_within_generation(draft: JobDraft, failure: Failure, kind: MarkKind) -> None:
    """Count each generation against one node at most.

    Kills on several nodes have a cause that is not a machine. If several nodes crash, the first one counts, since the
    others may only have lost a partner. A failure that names hardware counts in place of all others.
    """
    assert failure.node is not None
    job, generation = draft.state.job, failure.generation
    others = [
        (record, mark)
        for record in draft.records.of_jobs((job,))
        if record.node != failure.node
        if (mark := record.mark_of(job, generation)) is not None and mark.counts
    ]
    if not others or kind not in AGAINST:
        return
    own = record_of(draft, failure.node)
    mine = own.mark_of(job, generation)
    if kind in COMPARED and mine is not None and mine.counts:
        first = others[0][0].node
        why = f"{first} failed in the same generation"
        _keep(draft, own.replacing(mine, _struck(mine, why)))
    for record, mark in others:
        both_killed = kind is MarkKind.KILLED and mark.kind is MarkKind.KILLED
        if mark.kind in COMPARED and (both_killed or kind not in COMPARED):
            why = f"{failure.node} failed in the same generation"
            _keep(draft, record.replacing(mark, _struck(mark, why)))


def _device(draft: JobDraft, failure: Failure) -> str:
    """Return the device that the alert which reports the failure names."""
    known = draft.state.alerts.get(failure.node or "", ())
    return next((alert.device for alert in reversed(known) if alert.event in failure.evidence), "")


def _keep(draft: JobDraft, record: NodeRecord) -> None:
    """Keep a record in the decision, with its odds as they are now."""
    odds = log_odds(record, elsewhere(record, draft.records), draft.now, draft.rules.record)
    draft.records[record.node] = msgspec.structs.replace(record, log_odds=odds)
