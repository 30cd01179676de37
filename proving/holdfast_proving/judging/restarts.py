"""Judges of restarts: each has a reason, and goes on from a sound step."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.events import BadNumber, CodeJudged, DiagnosticResult, Eviction, ReplayEnded
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History

REASON_S = 120.0
"""A fault that ended so shortly before a restart may still be its reason."""
SAME_DECISION_S = 1.0


def needless(history: History) -> Iterator[Complaint]:
    """Complain about restarts of runs that made sound steps at their pace, with all machines well."""
    evicted = [(at_s, it.job) for at_s, it in history.of(Eviction)]
    asked: list[tuple[float, str | None]] = [(it.due_s, it.job) for it in history.cluster.asked]
    asked += [(at_s, it.job) for at_s, it in history.of(CodeJudged) if it.verdict == "bad"]
    for training in history.cluster.trainings:
        for stop in training.stops:
            has_reason = (
                stop.is_spoiled
                or stop.is_slow
                or any(_is_or_was_wrong(history, member, stop.at_s) for member in stop.members)
                # Judges of blame decide whether the eviction was right.
                or any(job == stop.job and abs(at_s - stop.at_s) < SAME_DECISION_S for at_s, job in (*evicted, *asked))
            )
            if not has_reason:
                text = "all its machines were well, and it made sound steps at its pace"
                yield Complaint(wrong=Wrong.NEEDLESS_RESTART, at_s=stop.at_s, job=stop.job, text=text)


def _is_or_was_wrong(history: History, machine: str, at_s: float) -> bool:
    ledger = history.ledger
    return ledger.is_at_fault(machine, at_s, REASON_S) or ledger.was_away(machine, at_s, REASON_S)


def from_corrupt_steps(history: History) -> Iterator[Complaint]:
    """Complain about starts from corrupt steps: a machine had part in computing them that, by then, a test or a replay
    had shown to compute wrongly. A decision cannot know what no test has found.
    """
    # When each machine's silent fault first showed itself in a job; of several times the first one stays.
    shown = {
        (fault.culprit, it.job): it.at_s
        for it in reversed(history.ledger.showings)
        if (fault := history.ledger.records[it.fault].fault).kind.is_silent
    }
    failed = [(at_s, it.node or "") for at_s, it in history.of(DiagnosticResult) if it.status == "failed"]
    failed += [(at_s, node) for at_s, it in history.of(ReplayEnded) for node in it.suspects]
    for training in history.cluster.trainings:
        for start in training.starts if training.plan.keeps != "nothing" else ():
            # Without a showing before the start, no moment lies between the two.
            culprits = {node for at_s, node in failed if shown.get((node, start.job), start.at_s) < at_s < start.at_s}
            if start.is_corrupt and not start.is_spoiled and culprits:
                names = ", ".join(sorted(culprits))
                text = f"it went on from step {start.from_step}, which {names} had computed wrongly"
                yield Complaint(wrong=Wrong.CORRUPT_STEP_KEPT, at_s=start.at_s, job=start.job, text=text)
                break


def from_spoiled_steps(history: History) -> Iterator[Complaint]:
    """Complain about restarts from a step that was known to be spoiled."""
    found = [(at_s, it.job) for at_s, it in history.of(BadNumber)]
    for training in history.cluster.trainings:
        sound_s = 0.0
        for start in training.starts:
            if not start.is_spoiled:
                sound_s = start.at_s
            elif any(job == start.job and sound_s < at_s < start.at_s for at_s, job in found):
                text = f"it went on from step {start.from_step}, which was known to be spoiled"
                yield Complaint(wrong=Wrong.POISON_SURVIVES, at_s=start.at_s, job=start.job, text=text)
