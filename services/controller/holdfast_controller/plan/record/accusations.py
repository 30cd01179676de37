"""Limits on evictions whose only evidence is what ranks did or printed: a script can do both on any machine it likes.

Their number is limited per job and per author within a time. An evicted node comes back if the job shows that the node
was not the cause: the same rank fails in the same way on another node, or enough other nodes print the same that the
record would not have called for the eviction. A job whose accusation moved with its rank is ignored as a witness for
`[record] half_life_days`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

from holdfast.engines.record.chance import elsewhere, log_odds, logit
from holdfast.engines.record.history import JUDGED, TEXT_MAX, Mark, MarkKind, NodeRecord
from holdfast.events import EvictionRevoked
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import breaker
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.phase import LIVE
from holdfast_controller.plan.record.noting import is_distrusted, note_cleared, strike

TESTED_WITHIN = timedelta(minutes=15)
"""Time within which the tests of a node that left are over. What they show counts for more than what others print."""

ACCUSATIONS = "accusations"
"""Mechanism that withholds an eviction: the job has accused as many nodes as it may."""


def is_full(draft: JobDraft) -> bool:
    """Return True if the job, or all jobs of its author, have cost the pool as many nodes as they may without a
    witness."""
    block, author = timedelta(seconds=draft.rules.timeouts.block_s), draft.state.author
    out = sum(draft.now - mark.at < block for _, mark in draft.records.accused_by(draft.state.job))
    if out >= accused_max(draft):
        return True
    of_author = sum(draft.now - mark.at < block for mark in draft.records.accused_for(author)) if author else 0
    return of_author >= draft.rules.record.accused_author_multiple * accused_max(draft)


def accused_max(draft: JobDraft) -> int:
    nnodes = draft.state.spec.nnodes
    return max(breaker.least(nnodes, draft.rules.ladder), int(draft.rules.record.accused_share_max * nnodes))


def may_exchange(draft: JobDraft, failure: Failure) -> bool:
    """Return True if a node that its own rank or process accuses may be exchanged at once, and tested beside training.

    Not if the same job has cost a healthy node so lately, or the last one that it accused is not tested yet: then the
    words may be the script's, or the hang passes by itself. Words say nothing of hangs, and hangs nothing of words.
    A job that waits for nodes has a claim already, which one for an exchange would replace.
    """
    if not isinstance(draft.state.phase, LIVE) or is_full(draft) or is_distrusted(draft) or awaits_tests(draft):
        return False
    since, job = draft.now - timedelta(seconds=draft.rules.timeouts.block_s), draft.state.job
    is_hang = failure.symptom is Symptom.HANG
    return not any(_was_cleared(record, job, since, is_hang) for record in draft.records.of_jobs((job,)))


def awaits_tests(draft: JobDraft) -> bool:
    """Return True if a node is out for what ranks of the job did, and its tests may not be over."""
    return any(_is_under_test(draft, mark) for _, mark in draft.records.accused_by(draft.state.job))


def _is_under_test(draft: JobDraft, mark: Mark) -> bool:
    return mark.is_tested and draft.now - mark.at < TESTED_WITHIN


def _was_cleared(record: NodeRecord, job: str, since: datetime, is_hang: bool) -> bool:
    """Return True if tests or later failures have shown that the job accused this node in vain, in a hang or not."""
    judged = [mark for mark in record.marks if mark.kind in JUDGED]
    pairs = pairwise(judged)
    hangs = {(mark.job, mark.generation) for mark in record.marks if mark.kind is MarkKind.HANG}
    return any(
        first.is_accusation
        and first.job == job
        and then.kind is MarkKind.CLEARED
        and then.at > since
        and ((job, first.generation) in hangs) is is_hang
        for first, then in pairs
    )


def refute(draft: JobDraft, failure: Failure) -> None:
    """Take nodes off the blocklist that were evicted for what the job now does without them."""
    is_of_node = failure.symptom in FIRST_HAND_OF_NODE or failure.is_of_own_link
    if not is_of_node or failure.node is None or failure.is_witnessed:
        return
    for record, mark in draft.records.accused_by(draft.state.job):
        is_earlier = failure.generation <= mark.generation
        if record.node in draft.state.nodes or is_earlier or _is_under_test(draft, mark):
            continue
        if _is_same(failure, mark):
            why = f"rank {failure.rank} fails in the same way on {failure.node}: {failure.text}"
            _distrust(draft, record.node, failure.node, why)
        elif not _still_holds(draft, record, mark):
            why = f"the job prints the like on other nodes, now on {failure.node}: {failure.text}"
        else:
            continue
        draft.emit(EvictionRevoked, node=record.node, epoch=mark.epoch, reason=why)
        note_cleared(draft, record.node, why)


def _is_same(failure: Failure, mark: Mark) -> bool:
    return failure.rank is not None and (failure.rank, failure.symptom_name) == (mark.rank, mark.symptom)


def _distrust(draft: JobDraft, first: str, second: str, why: str) -> None:
    """Strike what the job's ranks printed on both nodes, if they printed it on both; from now on it is no evidence."""
    job = draft.state.job
    printed = [
        {mark.job for mark in record.marks if mark.kind is MarkKind.HARDWARE}
        for node in (first, second)
        if (record := draft.records.get(node)) is not None
    ]
    if not all(job in jobs for jobs in printed):
        return
    draft.update(distrusted_since=draft.now)
    for node in (first, second):
        strike(draft, node, lambda mark: mark.kind is MarkKind.HARDWARE and mark.job == job, why[:TEXT_MAX])


def _still_holds(draft: JobDraft, record: NodeRecord, eviction: Mark) -> bool:
    """Return False if the record called for the eviction, and would not have with what other nodes print by now."""
    if not any(mark.kind is MarkKind.HARDWARE and mark.counts for mark in record.marks):
        return True  # Its ranks printed nothing that others could print the like of.
    policy = draft.rules.record
    around = elsewhere(record, draft.records)
    if around.until(eviction.at).accusations == around.accusations:
        return True
    enough = logit(policy.evict_min)
    was_called_for = log_odds(record, around.until(eviction.at), eviction.at, policy) >= enough
    # What has faded by itself is no reason to clear it.
    still_is = log_odds(record, around.until(eviction.at), draft.now, policy) >= enough
    return not (was_called_for and still_is) or log_odds(record, around, draft.now, policy) >= enough
